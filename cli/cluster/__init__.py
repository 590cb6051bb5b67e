"""`cloudgpu cluster`."""
