"""Supervisor: its process, its threads, its lock, and the scheduling of jobs' steps."""
