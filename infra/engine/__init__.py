"""Pulumi's engine and its stacks: installation, backends, locks, events."""
