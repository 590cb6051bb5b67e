"""Secrets of a job, as its nodes read them."""
