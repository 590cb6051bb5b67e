"""Virtual machines of Azure: see docs/azure.md."""
