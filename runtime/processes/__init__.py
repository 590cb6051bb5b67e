"""The processes of a node: started, read, signalled, and killed with everything that they started."""
