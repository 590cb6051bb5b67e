"""Saving and restoring training:
see docs/guides/checkpointing.md. Import the modules themselves: the agent and the writer
must not load what only a training program needs."""
