"""cloudgpu: run training jobs on GPU machines. A job file goes in, a trained model comes out."""

__version__ = "0.1.0"
