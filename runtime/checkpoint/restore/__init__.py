"""Select a checkpoint, verify it, and rebuild the state."""
