"""`cloudgpu image`."""
