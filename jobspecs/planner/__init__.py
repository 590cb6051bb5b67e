"""The planner: offers of clouds and of this machine, their prices and order."""
