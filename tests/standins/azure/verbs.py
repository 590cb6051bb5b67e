"""Control verbs of Azure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from . import keyvault, names, scalesets, vms
from .arm import key
from .capacity import HOW
from .machines import told
from .operations import FailedError
from .world import Later, World


class Verbs:
    """Each public method is a control verb; it runs with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def table(self) -> dict[str, Callable[..., Any]]:
        own = [name for name in vars(type(self)) if not name.startswith("_") and name != "table"]
        return {name: self._locked(getattr(self, name)) for name in own}

    def _locked(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            with self._world.lock:
                return verb(**arguments)

        return call

    # -- setup

    def environ(self, name: str) -> Mapping[str, str]:
        """Return the environment that points clients to the stand-in, as this application."""
        return {
            "AZURE_TENANT_ID": names.TENANT,
            "AZURE_CLIENT_ID": names.client_id(name),
            "AZURE_CLIENT_SECRET": names.secret(name),
            "AZURE_SUBSCRIPTION_ID": names.SUBSCRIPTION,
            "AZURE_AUTHORITY_HOST": self._world.url,
            "CLOUDGPU_AZURE_ENDPOINT": self._world.url,
            "REQUESTS_CA_BUNDLE": str(self._world.certificate),
            "SSL_CERT_FILE": str(self._world.certificate),
        }

    def set_capacity(self, *, size: str, region: str, zone: str, market: str, places: int | None, how: HOW) -> None:
        self._world.capacity.set_places((size, region, zone, market), places, how)

    def set_quota(self, region: str, family: str, limit: int) -> None:
        self._world.capacity.set_limit(region, family, limit)

    def set_sku(self, size: str, region: str, changes: dict[str, Any] | None) -> None:
        if changes is None:
            self._world.sku_changes.pop((size.lower(), region), None)
        else:
            self._world.sku_changes[size.lower(), region] = changes

    def copy_sku(self, new: str, like: str) -> None:
        self._world.sku_copies.append((new, like))

    def set_times(
        self,
        *,
        operation: float | None,
        group: float | None,
        lag: float | None,
        roles: float | None,
        retry: int | None,
        restart: float | None,
        sets: float | None,
        tags: float | None,
        cache: float | None,
    ) -> None:
        world = self._world
        world.delay_s = world.delay_s if operation is None else operation
        world.group_s = world.group_s if group is None else group
        world.lag_s = world.lag_s if lag is None else lag
        world.role_lag_s = world.role_lag_s if roles is None else roles
        world.retry_s = world.retry_s if retry is None else retry
        world.restart_s = world.restart_s if restart is None else restart
        world.sets_s = world.sets_s if sets is None else sets
        world.tags_s = world.tags_s if tags is None else tags
        world.cache_s = world.cache_s if cache is None else cache

    def set_machine_environ(self, values: dict[str, str]) -> None:
        self._world.machine_environ = values

    def add_storage(self, account: str, group: str, region: str) -> str:
        path = f"/subscriptions/{names.SUBSCRIPTION}/resourceGroups/{group}"
        if self._world.find(path) is None:
            made = {
                "id": path,
                "name": group,
                "type": "Microsoft.Resources/resourceGroups",
                "location": region,
                "tags": {},
            }
            self._world.resources[key(path)] = {**made, "properties": {"provisioningState": "Succeeded"}}
        storage = f"{path}/providers/Microsoft.Storage/storageAccounts/{account}"
        self._world.resources[key(storage)] = {
            "id": storage,
            "name": account,
            "type": "Microsoft.Storage/storageAccounts",
            "location": region,
            "kind": "StorageV2",
            "sku": {"name": "Standard_LRS"},
            "tags": {},
            "properties": {"provisioningState": "Succeeded"},
        }
        return storage

    def add_secret(self, *, vault: str, group: str, secret: str, value: str, content_type: str | None) -> str:
        return keyvault.add_secret(
            self._world, vault=vault, group=group, secret=secret, value=value, content_type=content_type
        )

    def disable_secret(self, vault: str, secret: str) -> None:
        for bundle in self._world.secrets[vault.lower(), secret.lower()].values():
            bundle["attributes"]["enabled"] = False

    def unregister(self, namespace: str) -> None:
        self._world.registered.discard(namespace.lower())

    def fail_later(self, *, kind: str, doing: str, code: str, message: str, where: str, times: int) -> None:
        self._world.later.append(Later(kind, doing, FailedError(code, message), where, times))

    def fail_now(self, name: str, code: str) -> None:
        vms.fail(self._world.vm(name), code)

    def revoke(self, name: str) -> None:
        self._world.tokens.revoke(name)

    # -- events

    def evict(self, name: str, seconds: float) -> None:
        vms.evict(self._world, self._world.vm(name), seconds)

    def maintain(self, name: str, kind: str, seconds: float) -> None:
        vms.maintain(self._world, self._world.vm(name), kind, seconds)

    def crash(self, name: str) -> None:
        vms.crash(self._world, self._world.vm(name))

    def sicken(self, name: str) -> None:
        scalesets.sicken(self._world, self._world.vm(name))

    def reboot(self, name: str) -> None:
        vms.reboot(self._world, self._world.vm(name))

    # -- state

    def instances(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(told(vm)) for vm in self._world.vms]

    def resources(self, kind: str) -> list[dict[str, Any]]:
        return [dict(one) for one in self._world.of_kind(kind)]

    def all_resources(self) -> list[str]:
        return [str(one["id"]) for one in self._world.resources.values()]
