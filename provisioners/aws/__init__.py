"""Target `aws`: machines on EC2. See docs/aws.md."""
