"""Machines on Compute Engine: see docs/guides/gcp.md."""
