"""One node of a job on its machine: its program, secrets, outputs and checkpoint writer."""
