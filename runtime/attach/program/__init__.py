"""The program's own code: run it, rewrite its loops, find its frames."""
