"""Machines on Compute Engine: see docs/gcp.md."""
