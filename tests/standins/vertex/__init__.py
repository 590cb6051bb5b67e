"""Vertex AI's custom jobs on the loopback: one state machine, REST and gRPC in front of it, containers that run.

jobs.py        the state machine: quota, capacity, states, ends
checks.py      what CreateCustomJob refuses; machines.csv is what may be asked for
containers.py  replicas as processes of this computer
filters.py     the filters of ListCustomJobs
service.py     the REST API, and what tests may do with it
grpc_front.py  the same over gRPC
control.py     a test's hold on it
"""
