"""A job that exists: find it, follow it, show it."""
