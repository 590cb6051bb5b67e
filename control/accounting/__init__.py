"""The cost of jobs, and where their paid time went."""
