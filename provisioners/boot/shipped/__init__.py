"""Files that run on machines, without the package: each has the same name there."""
