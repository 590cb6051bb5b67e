"""Object stores and local folders: connections, credentials, conditional writes, listings, copies."""
