"""The records of the job dir and of a fleet's folder: what the control side and the machines exchange."""
