"""`cloudgpu goodput`."""
