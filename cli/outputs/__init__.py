"""`cloudgpu outputs`."""
