"""Provisioner for Compute Engine: see docs/guides/gcp.md."""
