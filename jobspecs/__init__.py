"""Job files: models, loader, catalog, rules, planner, dialects. Pure: no network, no cloud SDK."""
