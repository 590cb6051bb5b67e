"""Containers of Blob Storage, as job files name them and as roles are given on them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ...base import ProvisionError
from ..names import group_id


class Container(NamedTuple):
    """Of a storage account."""

    group: str
    account: str
    container: str

    def to_tag(self) -> str:
        return "/".join(self)

    @classmethod
    def from_tag(cls, value: str) -> Container | None:
        """None: somebody has changed the tag."""
        parts = value.split("/")
        return cls(*parts) if len(parts) == 3 and all(parts) else None

    def scope(self, subscription: str) -> str:
        account = f"{group_id(subscription, self.group)}/providers/Microsoft.Storage/storageAccounts/{self.account}"
        return f"{account}/blobServices/default/containers/{self.container}"


def split_url(url: str) -> tuple[str, str, str]:
    """Container, account and prefix of `az://container@account/prefix`. Raises ProvisionError(invalid) for another."""
    scheme, _, rest = url.partition("://")
    place, _, prefix = rest.partition("/")
    container, _, account = place.partition("@")
    if scheme != "az" or not container or not account:
        message = f"a machine on azure cannot reach {url}: it must be az://CONTAINER@ACCOUNT/…"
        raise ProvisionError("invalid", message, scope="cloud")
    if any(character in prefix for character in "*?'\\"):  # a condition would take them for patterns and quotes
        raise ProvisionError("invalid", f"{url}: `*`, `?`, `'` and `\\` cannot be in it on azure", scope="cloud")
    return container, account, prefix.strip("/")
