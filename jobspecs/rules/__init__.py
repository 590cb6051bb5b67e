"""Compatibility rules: impossible requests, the rule that forbids them, and allowed alternatives."""
