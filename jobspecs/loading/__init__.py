"""Load the text of a file into a validated JobSpec; every mistake is reported with line and column."""
