"""One step of one job towards its goal, and the decisions that it takes."""
