"""The checkpoint writer: a process that hashes, writes and commits what trainers stage."""
