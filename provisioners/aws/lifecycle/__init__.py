"""Life cycle of launches: start of machines, alone or as a group, teardown, and `cloudgpu gc`."""
