"""Save and restore the state of a training: see docs/guides/checkpointing.md.

This package imports nothing, since the agent and the writer must not load what only a training program needs: import
from its modules.
"""
