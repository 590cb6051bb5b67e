"""Test client of the stand-in for Azure: the common control verbs and Azure's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..faults import Control
from .capacity import HOW
from .machines import InstanceState
from .names import SUBMITTER


class AzureControl(Control):
    """Control by the stand-in's URL; machines are identified by name."""

    def set_capacity(
        self, size: str, region: str, zone: str, market: str, places: int | None, *, how: HOW = "allocation"
    ) -> None:
        """Limit the concurrent machines of a size, region, zone ("": the whole region) and market (`spot`,
        `on-demand`); None: unlimited. `how`: the operation fails (`allocation`, `constraints`), or the PUT (`sku`)."""
        self.do("set_capacity", size=size, region=region, zone=zone, market=market, places=places, how=how)

    def set_quota(self, region: str, family: str, limit: int) -> None:
        """Set a quota in vCPUs by family; `cores`: all on-demand, `lowPriorityCores`: all Spot."""
        self.do("set_quota", region=region, family=family, limit=limit)

    def set_sku(
        self,
        size: str,
        region: str,
        *,
        zones: Sequence[str] | None = None,
        restricted: Sequence[str] | None = None,
        reason: str = "NotAvailableForSubscription",
        capabilities: Mapping[str, str] | None = None,
    ) -> None:
        """Override a size's SKU in a region: its zones, the zones restricted for this subscription (empty: the whole
        region), and capabilities. Without any of these: restore the catalogue's SKU."""
        changes: dict[str, Any] = {} if zones is None else {"zones": list(zones)}
        if capabilities is not None:
            changes["capabilities"] = dict(capabilities)
        if restricted is not None:
            kind = "Zone" if restricted else "Location"
            info = {"locations": [region], **({"zones": list(restricted)} if restricted else {})}
            result = {"type": kind, "values": [region], "restrictionInfo": info, "reasonCode": reason}
            changes["restrictions"] = [result]
        self.do("set_sku", size=size, region=region, changes=changes or None)

    def copy_sku(self, new: str, like: str) -> None:
        """Add a size to lists that copies a known one under a new name."""
        self.do("copy_sku", new=new, like=like)

    def set_price(self, size: str, region: str, market: str, usd: str) -> None:
        """Set a price in the price list."""
        self.do("prices/set", size=size, region=region, market=market, usd=usd)

    def add_secret(
        self, vault: str, secret: str, value: str, *, group: str = "storage", content_type: str | None = None
    ) -> str:
        """Add a version to a secret of a vault, which is created if needed; return the version."""
        result = {"vault": vault, "group": group, "secret": secret, "value": value, "content_type": content_type}
        return str(self.do("add_secret", **result))

    def disable_secret(self, vault: str, secret: str) -> None:
        """Disable all versions of a secret."""
        self.do("disable_secret", vault=vault, secret=secret)

    def add_price(self, size: str, region: str, usd: str, **changes: Any) -> None:
        """Add an entry to the price list that copies the one for Linux on demand, except these fields."""
        self.do("prices/add", size=size, region=region, usd=usd, changes=changes)

    def set_times(
        self,
        *,
        operation: float | None = None,
        group: float | None = None,
        lag: float | None = None,
        roles: float | None = None,
        retry: int | None = None,
        restart: float | None = None,
        sets: float | None = None,
        tags: float | None = None,
        cache: float | None = None,
    ) -> None:
        """Set durations in seconds.

        operation: of an operation
        group: of deleting a resource group
        lag: until lists show a new group
        roles: until roles can be assigned to a new principal
        retry: value of Retry-After
        restart: of a restart
        sets: until a scale set begins to create machines
        tags: of a change of tags; 0: it is synchronous
        cache: until a GET shows a new machine
        """
        result = {"operation": operation, "group": group, "lag": lag, "roles": roles, "retry": retry}
        self.do("set_times", **result, restart=restart, sets=sets, tags=tags, cache=cache)

    def set_machine_environ(self, values: Mapping[str, str]) -> None:
        """Set environment variables of machines launched later, such as Blob Storage's address."""
        self.do("set_machine_environ", values=dict(values))

    def add_storage(self, account: str, *, group: str = "storage", region: str = "eastus") -> str:
        """Add a storage account in a resource group of the tester; return its id."""
        return str(self.do("add_storage", account=account, group=group, region=region))

    def unregister(self, namespace: str) -> None:
        """Unregister a resource provider."""
        self.do("unregister", namespace=namespace)

    def fail_operation(
        self, kind: str, verb: str, code: str, message: str = "", *, where: str = "", times: int = 1
    ) -> None:
        """Make operations of this kind (`Microsoft.Compute/virtualMachines`) fail with this error. `verb`: `write`,
        `delete`, or `provision` (of a machine, once it runs). `where`: part of the resource's id."""
        result = message or f"{code} (stand-in)"
        self.do("fail_later", kind=kind, doing=verb, code=code, message=result, where=where, times=times)

    def enforce(self, allowed: Mapping[str, Sequence[str]] | None) -> None:
        """Restrict each name to these globs of actions (`Microsoft.Compute/virtualMachines/*`); None: full access.
        Machines always need role assignments."""
        self.do("enforce", allowed=None if allowed is None else {name: list(globs) for name, globs in allowed.items()})

    def used(self) -> set[tuple[str, str]]:
        """Return the (name, action) pairs that calls have used since enforce()."""
        return {(name, action) for name, action in self.do("used")}

    def revoke(self, name: str) -> None:
        """Invalidate the tokens of a name."""
        self.do("revoke", name=name)

    def evict(self, name: str, seconds: float = 30.0) -> None:
        """Announce the eviction of a Spot machine; it happens after `seconds`, or when the machine acknowledges it."""
        self.do("evict", name=name, seconds=seconds)

    def maintain(self, name: str, kind: str, seconds: float) -> None:
        """Announce `Freeze`, `Reboot`, `Redeploy` or `Terminate`; it happens after `seconds`, or when the machine
        acknowledges it."""
        self.do("maintain", name=name, kind=kind, seconds=seconds)

    def crash(self, name: str) -> None:
        """Simulate a host failure: all processes end at once, and the machine boots again with its disk."""
        self.do("crash", name=name)

    def fail_health(self, name: str) -> None:
        """Make a machine of a scale set fail its health extension."""
        self.do("sicken", name=name)

    def fail_now(self, name: str, code: str) -> None:
        """Make a running machine fail, as if Azure could not restart it on another host. `code`: the reported reason;
        "": none."""
        self.do("fail_now", name=name, code=code)

    def reboot(self, name: str) -> None:
        """Kill all processes of the machine and boot it again with its disk."""
        self.do("reboot", name=name)

    def instances(self, **where: Any) -> list[InstanceState]:
        """Return all machines ever created; `where` compares fields: `instances(running=True, zone="1")`."""
        result = [InstanceState(**value) for value in self.do("instances")]
        return [one for one in result if all(getattr(one, name) == value for name, value in where.items())]

    def resources(self, kind: str) -> list[dict[str, Any]]:
        """Return all resources of a kind (`Microsoft.Compute/disks`), as in the API."""
        found: list[dict[str, Any]] = self.do("resources", kind=kind)
        return found

    def all_resources(self) -> list[str]:
        """Return the ids of all resources, including groups and role assignments."""
        return [str(one) for one in self.do("all_resources")]


def environ(url: str, folder: Path, name: str = SUBMITTER) -> dict[str, str]:
    """Return the environment that points Azure's clients to the stand-in at this URL, as this application. `folder` is
    for az."""
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, str] = AzureControl(url).do("environ", name=name)
    # Keeps the tester's own settings away from the stand-in.
    return {**result, "AZURE_CONFIG_DIR": str(folder / "azure")}
