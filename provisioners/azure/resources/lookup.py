"""Look-up of a resource of the subscription by its type and name, without its group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..clients import Clients, as_dicts


def find_by_name(clients: Clients, kind: str, name: str, doing: str) -> Mapping[str, Any] | None:
    """Return the resource; None: the subscription has none that the credentials may see. Raises ProvisionError.

    `kind`: e.g. `Microsoft.KeyVault/vaults`.
    """
    where = f"resourceType eq '{kind}' and name eq '{name}'"
    found: list[Mapping[str, Any]] = clients.ask(
        doing, lambda: cast("Any", as_dicts(clients.resources.resources.list(filter=where)))
    )
    return next((one for one in found if str(one.get("name", "")).lower() == name.lower()), None)
