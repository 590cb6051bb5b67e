"""Google Cloud's current machine types, prices and quotas."""
