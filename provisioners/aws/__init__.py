"""Machines on EC2: see docs/guides/aws.md."""
