"""Where training stands in its data: loaders, samplers, random generators."""
