"""The target `local`: jobs on this machine."""
