"""The checkpoint writer: a process that hashes, writes and commits the saves that trainers stage."""
