"""Machines that outlive a launch: clusters, groups of a job's own, and what infra stacks ask of a cloud."""
