"""What Google's read-only APIs beside Compute Engine tell: Cloud Billing's price list, Cloud Quotas."""
