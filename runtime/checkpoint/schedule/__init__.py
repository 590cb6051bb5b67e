"""Schedule of saves, and notices that ask for one."""
