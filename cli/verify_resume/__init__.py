"""`cloudgpu verify-resume`."""
