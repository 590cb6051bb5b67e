"""Machines that are there already: those of a cluster (`cloudgpu cluster up`). See docs/guides/clusters.md."""
