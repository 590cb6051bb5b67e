"""Modules that the provisioners share: calls and errors, pacing, accounts, tags, boot records, refreshed tables."""
