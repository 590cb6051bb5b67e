"""The member process on each machine of a fleet, which runs nodes of jobs one after the other."""
