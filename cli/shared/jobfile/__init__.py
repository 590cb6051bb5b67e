"""The job file of a command, its flags, and the plan made from it."""
