"""Secrets in Key Vaults, as scopes of role assignments. A reference names only the vault, so its group is looked up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ....jobspecs import secret_references
from ...base import ProvisionError
from ..clients import Clients
from ..names import group_id, part_of
from .lookup import find_by_name

_KIND = "Microsoft.KeyVault/vaults"
_TAG = "secret"
_MOST = 20
"""Maximum number of secrets of a launch: each takes one of its group's 50 tags."""


class VaultSecret(NamedTuple):
    """Secret of a vault."""

    group: str
    vault: str
    secret: str

    def to_tag(self) -> str:
        return "/".join((_TAG, *self))

    @classmethod
    def from_tag(cls, value: str) -> VaultSecret | None:
        """Parse a tag's value; None: it is of another kind, or was changed."""
        kind, *parts = value.split("/")
        return cls(*parts) if kind == _TAG and len(parts) == 3 and all(parts) else None

    def scope(self, subscription: str) -> str:
        return f"{group_id(subscription, self.group)}/providers/{_KIND}/{self.vault}/secrets/{self.secret}"


def find_secrets(clients: Clients, references: Iterable[str]) -> list[VaultSecret]:
    """Return the secrets of references, each once.

    Raises ProvisionError(invalid) for a vault outside the subscription, and for more secrets than the tags of the
    launch's group can name.
    """
    named = dict.fromkeys(
        tuple(secret_references.parse(one).path.split("/")[:2]) for one in references
    )  # without the version
    if len(named) > _MOST:
        message = (
            f"the job names {len(named)} secrets of key vaults, a launch can grant {_MOST}: put several values "
            "into one secret as a JSON object, and select them with #KEY"
        )
        raise ProvisionError("invalid", message, scope="cloud", code="TooManySecrets")
    groups = {vault: _group_of(clients, vault) for vault in dict.fromkeys(vault for vault, _ in named)}
    return [VaultSecret(groups[vault], vault, secret) for vault, secret in named]


def _group_of(clients: Clients, vault: str) -> str:
    """Return the resource group of a vault."""
    found = find_by_name(clients, _KIND, vault, f"look for the key vault {vault}")
    if found is not None:
        return part_of(str(found["id"]), "resourceGroups")
    message = (
        f"subscription {clients.subscription} has no key vault {vault} that you may see: correct `secrets`, or name an "
        "identity that may read it in CLOUDGPU_AZURE_IDENTITY, see docs/reference/azure-permissions.md"
    )
    raise ProvisionError("invalid", message, scope="cloud", code="NoKeyVault")
