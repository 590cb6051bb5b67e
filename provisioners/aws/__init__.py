"""Machines on EC2: see docs/aws.md."""
