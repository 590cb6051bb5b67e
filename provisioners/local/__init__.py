"""Target `local`: jobs on this machine."""
