"""Secrets of jobs on the submitter's computer: read from their sources, and held in the supervisor's memory."""
