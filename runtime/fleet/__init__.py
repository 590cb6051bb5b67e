"""What runs on a machine of a fleet: one job's node after the other."""
