"""Position of a training in its data: loaders, samplers, random generators."""
