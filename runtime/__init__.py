"""What runs on the machine: agent, launchers, checkpointing, notices."""
