"""Management of a node's processes: start, output, signals, exit codes, and killing with all descendants."""
