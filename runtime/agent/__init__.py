"""The agent: it runs one node of one attempt."""
