"""The supervisor: its process, its threads, its lock, and which job is advanced when."""
