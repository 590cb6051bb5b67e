"""Pulumi's engine and the stacks it works on: install, backend, locks, events."""
