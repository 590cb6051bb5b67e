"""Control side: stores jobs, supervises them and accounts for their cost."""
