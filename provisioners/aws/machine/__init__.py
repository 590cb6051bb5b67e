"""A machine in the API's format: its image, its parts, and the request or template that makes it."""
