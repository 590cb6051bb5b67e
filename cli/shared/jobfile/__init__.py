"""Job file of a command, its flags, and its plan."""
