"""Removal of ended jobs: their folders in all stores, then their rows."""
