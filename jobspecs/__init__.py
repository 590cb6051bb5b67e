"""What may be asked for: models, loader, tables, compatibility, planner, dialects. Pure: no network, no cloud SDK."""
