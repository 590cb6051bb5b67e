"""Provisioner for Azure virtual machines: see docs/azure.md."""
