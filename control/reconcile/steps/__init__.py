"""Steps of one job: each class takes the step of one state, given the context of the job or its attempt."""
