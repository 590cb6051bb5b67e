"""One step of one job: each class here takes the step of one state, given the context of the job or its attempt."""
