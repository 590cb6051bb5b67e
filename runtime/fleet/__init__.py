"""The process on a machine of a fleet: it runs one job's node after the other."""
