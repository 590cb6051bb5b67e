"""Vertex AI's custom jobs on loopback: one state machine behind REST and gRPC, with containers that run.

jobs.py        the state machine: quota, capacity, states, ends
checks.py      validation by CreateCustomJob; machines.csv lists the valid machines
containers.py  replicas as local processes
filters.py     the filters of ListCustomJobs
service.py     the REST API, and the control verbs
grpc_front.py  the same over gRPC
control.py     the test's client
"""
