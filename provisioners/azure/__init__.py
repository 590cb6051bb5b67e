"""Virtual machines of Azure: see docs/guides/azure.md."""
