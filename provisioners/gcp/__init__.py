"""Provisioner for Compute Engine: see docs/gcp.md."""
