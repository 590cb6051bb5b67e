"""Azure's current machine types, prices and quotas."""
