"""`cloudgpu status`."""
