"""When a checkpoint is due: intervals and notices."""
