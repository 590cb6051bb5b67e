"""Copy the state for a save: staging, overlap with training, replicated state, checks."""
