"""From the text of a file to a checked JobSpec, with every mistake at its line and column."""
