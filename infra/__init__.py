"""What lives longer than a job, as code: Pulumi components and programs, and their driver."""
