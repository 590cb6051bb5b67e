"""The stand-in's only subscription, and its applications."""

from __future__ import annotations

import uuid

SUBSCRIPTION = "5ab50000-0000-4000-8000-000000000001"
TENANT = "7e4a4700-0000-4000-8000-000000000002"
ARM = "https://management.azure.com"
STORAGE = "https://storage.azure.com"
SUBMITTER = "submitter"
"""Application of the submitter in tests; machines use other names."""
AUDITOR = "looker"
"""Application of Leftovers."""


def identity(*parts: str) -> str:
    """Return an id like those of Azure's resources and principals, derived deterministically from the parts."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(parts).lower()))


def client_id(name: str) -> str:
    """Return the client id of an application with a secret."""
    return identity("application", name)


def secret(name: str) -> str:
    return f"secret-of-{name}"
