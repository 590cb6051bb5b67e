"""`cloudgpu infra`."""
