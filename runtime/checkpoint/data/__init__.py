"""The position of training in its data: loaders, samplers, random generators."""
