"""The agent, which runs one node of one attempt on its machine."""
