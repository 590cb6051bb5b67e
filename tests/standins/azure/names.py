"""The one subscription of the stand-in, and who may call in it."""

from __future__ import annotations

import uuid

SUBSCRIPTION = "5ab50000-0000-4000-8000-000000000001"
TENANT = "7e4a4700-0000-4000-8000-000000000002"
ARM = "https://management.azure.com"
STORAGE = "https://storage.azure.com"
SUBMITTER = "submitter"
"""Who tests submit as: machines' calls are known by another name."""
LOOKER = "looker"
"""Who looks for what is left."""


def identity(*parts: str) -> str:
    """An id as Azure gives to resources and principals, always the same for the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(parts).lower()))


def client_id(name: str) -> str:
    """Of an application that has a secret."""
    return identity("application", name)


def secret(name: str) -> str:
    return f"secret-of-{name}"
