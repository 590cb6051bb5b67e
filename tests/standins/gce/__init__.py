"""Compute Engine of the stand-in for Google Cloud (tests/standins/gcp): instances that boot, and their resources."""
