"""Launches from start to end: machines are started, alone or as a group, removed, and collected by `cloudgpu gc`."""
