"""Machines in the API's wire format: image, specification, and the request or template that creates them."""
