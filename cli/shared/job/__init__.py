"""Find, follow and show existing jobs."""
