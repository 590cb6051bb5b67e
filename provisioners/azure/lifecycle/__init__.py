"""Lifecycle of launches: machines are started, alone or as a group, deleted, and collected by `cloudgpu gc`."""
