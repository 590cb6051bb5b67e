"""API requests for machines: image, reservation, instance parameters, RunInstances and launch template."""
