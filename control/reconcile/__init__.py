"""Reconciliation of one job in single steps towards its goal, with the decisions of each step."""
