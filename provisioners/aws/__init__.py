"""Target `aws`: machines on EC2. See docs/guides/aws.md."""
