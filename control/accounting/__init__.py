"""Accounting of jobs: their cost, and the use of the paid time."""
