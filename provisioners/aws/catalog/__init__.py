"""Tables, prices and quotas, as AWS has them now."""
