"""The user's program: execution, rewriting of its loops, and inspection of its frames."""
