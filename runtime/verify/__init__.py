"""Check that a program which was killed and resumed ends as one that was not: see docs/guides/verify-resume.md.

drill    runs a program as `run` does, saves at one step, kills it at another, and keeps a trace of its state
held     what a program holds besides what is saved: variables, generators, models
values   values taken apart into fields
files    compares the files that runs have written
compare  says of two such runs whether they agree, and if not, where they part and what is the likely cause
"""
