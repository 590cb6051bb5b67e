"""Google's read-only APIs beside Compute Engine: Cloud Billing's price list, and Cloud Quotas."""
