"""`cloudgpu catalog`."""
