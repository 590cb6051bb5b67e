"""Modules shared by the provisioners: API calls and errors, rate limits, accounts, tags, boot records, tables."""
