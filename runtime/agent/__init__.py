"""The agent: the process that runs one node of one attempt on its machine."""
