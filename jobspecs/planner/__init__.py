"""Planner: offers of clouds and of this machine, with prices and order."""
