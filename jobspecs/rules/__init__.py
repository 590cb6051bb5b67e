"""The compatibility rules: what cannot be, by which rule, and what would be allowed instead."""
