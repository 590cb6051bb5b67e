"""Tables, prices and quotas, as Google Cloud has them now."""
