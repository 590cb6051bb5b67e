"""Blob Storage containers: URLs in job files, and scopes of role assignments. Pure functions."""

from __future__ import annotations

from typing import NamedTuple

from ...base import ProvisionError
from ..names import group_id


class Container(NamedTuple):
    """Container of a storage account."""

    group: str
    account: str
    container: str

    def to_tag(self) -> str:
        return "/".join(self)

    @classmethod
    def from_tag(cls, value: str) -> Container | None:
        """Parse a tag's value; None: it is invalid, because the tag was changed."""
        parts = value.split("/")
        return cls(*parts) if len(parts) == 3 and all(parts) else None

    def scope(self, subscription: str) -> str:
        account = f"{group_id(subscription, self.group)}/providers/Microsoft.Storage/storageAccounts/{self.account}"
        return f"{account}/blobServices/default/containers/{self.container}"


def split_url(url: str) -> tuple[str, str, str]:
    """Return container, account and prefix of `az://container@account/prefix`. Raises ProvisionError(invalid) for
    another format."""
    scheme, _, rest = url.partition("://")
    place, _, prefix = rest.partition("/")
    container, _, account = place.partition("@")
    if scheme != "az" or not container or not account:
        message = f"a machine on azure cannot reach {url}: it must be az://CONTAINER@ACCOUNT/…"
        raise ProvisionError("invalid", message, scope="cloud")
    if any(character in prefix for character in "*?'\\"):  # wildcards and quotes in a role's condition
        raise ProvisionError("invalid", f"{url}: `*`, `?`, `'` and `\\` cannot be in it on azure", scope="cloud")
    return container, account, prefix.strip("/")
