"""Checkpoint format: manifests, state trees, layout of tensors and their parts."""
