"""The life of a job: store, supervisor, cost."""
