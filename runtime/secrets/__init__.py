"""A job's secrets on a machine: where their values come from, and what keeps them out of the log."""
