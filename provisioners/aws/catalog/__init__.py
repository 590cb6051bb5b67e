"""Current machine types, prices and quotas of AWS."""
