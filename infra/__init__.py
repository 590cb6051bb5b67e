"""Infrastructure as code for resources that outlive a job: Pulumi components, programs, and the engine that runs
them."""
