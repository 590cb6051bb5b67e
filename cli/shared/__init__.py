"""Modules that several commands share: output, errors, options, views."""
