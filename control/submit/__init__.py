"""Submission: turns a plan into a stored job and a job dir that machines can start from."""
