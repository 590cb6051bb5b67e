"""`cloudgpu gpus`."""
