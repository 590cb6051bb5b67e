"""Machines in the API's wire format: image, VM profile, and the request or template that creates them."""
