"""Whether a program that was killed and resumed ends as one that was not: see docs/verify-resume.md.

drill    runs a program as `run` does, saves at one step, kills it at another, and keeps a trace of its state
compare  says of two such runs whether they agree, and if not, where they part and what is the likely cause
"""
