"""Provisioner for Azure virtual machines: see docs/guides/azure.md."""
