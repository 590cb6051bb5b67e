"""Verify that a program which was killed and resumed ends like an uninterrupted run: see docs/guides/verify-resume.md.

drill          runs a program as `run` does, saves at one step, kills it at another, and records a trace of its state
trace          writes and reads that trace
program_state  computes digests of state that is not saved: variables, generators, models
values         flattens values into fields
files          compares the files that two runs have written
compare        compares two runs: whether they agree, and if not, the first difference and its likely cause
"""
