"""What a save copies and when: staging, overlap with training, replicated state, checks."""
