"""Modules that run on machines without the package, under the same file names."""
