"""From a plan to a stored job and a job dir that machines can start from."""
