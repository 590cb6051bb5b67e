"""Machines that outlive a launch: clusters, dedicated groups of jobs, and queries of a cloud for infra stacks."""
