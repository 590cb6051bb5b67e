"""Target `cluster`: jobs on machines that already exist (`cloudgpu cluster up`). See docs/guides/clusters.md."""
