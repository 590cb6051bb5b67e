"""`cloudgpu config`."""
