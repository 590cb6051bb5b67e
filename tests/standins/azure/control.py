"""A test's hold on the stand-in for Azure, wherever it runs: the verbs of every stand-in, and Azure's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..faults import Control
from .capacity import HOW
from .machines import Told
from .names import SUBMITTER


class AzureControl(Control):
    """Made of the stand-in's URL; machines are told by name."""

    def set_capacity(
        self, size: str, region: str, zone: str, market: str, places: int | None, *, how: HOW = "allocation"
    ) -> None:
        """At most so many machines at once of a size, region, zone ("": the whole region) and market (`spot`,
        `on-demand`); None: any number. `how` it is told: the operation fails (`allocation`, `constraints`), or the PUT
        (`sku`)."""
        self.do("set_capacity", size=size, region=region, zone=zone, market=market, places=places, how=how)

    def set_quota(self, region: str, family: str, limit: int) -> None:
        """In vCPUs; by family, `cores` for all on-demand, `lowPriorityCores` for all Spot."""
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
        """What is told of a size in a region: its zones, in which of them (empty: in the whole region) this
        subscription may not have it, and some of its capabilities. None of these: as in the catalogue."""
        changes: dict[str, Any] = {} if zones is None else {"zones": list(zones)}
        if capabilities is not None:
            changes["capabilities"] = dict(capabilities)
        if restricted is not None:
            kind = "Zone" if restricted else "Location"
            info = {"locations": [region], **({"zones": list(restricted)} if restricted else {})}
            told = {"type": kind, "values": [region], "restrictionInfo": info, "reasonCode": reason}
            changes["restrictions"] = [told]
        self.do("set_sku", size=size, region=region, changes=changes or None)

    def copy_sku(self, new: str, like: str) -> None:
        """Lists of sizes have a new one, that is as a known one in all but its name."""
        self.do("copy_sku", new=new, like=like)

    def set_price(self, size: str, region: str, market: str, usd: str) -> None:
        """In the price list."""
        self.do("prices/set", size=size, region=region, market=market, usd=usd)

    def add_price(self, size: str, region: str, usd: str, **changes: Any) -> None:
        """One entry more of the price list, that is as the one for Linux on demand in all but these fields."""
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
        """Seconds: until an operation is done, that deleting a group takes, until lists show a new group, until roles
        can be assigned to a new principal; what Retry-After says; that a machine is down when it is restarted; until a
        scale set begins to make machines; until a change of tags is done (0: it is when it is answered); until a GET
        shows a new machine."""
        told = {"operation": operation, "group": group, "lag": lag, "roles": roles, "retry": retry}
        self.do("set_times", **told, restart=restart, sets=sets, tags=tags, cache=cache)

    def set_machine_environ(self, values: Mapping[str, str]) -> None:
        """What machines launched from now on have in their environment: where Blob Storage is, for example."""
        self.do("set_machine_environ", values=dict(values))

    def add_storage(self, account: str, *, group: str = "storage", region: str = "eastus") -> str:
        """A storage account, in a group of the tester's; its id."""
        return str(self.do("add_storage", account=account, group=group, region=region))

    def unregister(self, namespace: str) -> None:
        """A resource provider may not be used."""
        self.do("unregister", namespace=namespace)

    def fail_later(
        self, kind: str, verb: str, code: str, message: str = "", *, where: str = "", times: int = 1
    ) -> None:
        """Operations of this kind (`Microsoft.Compute/virtualMachines`) fail with this error: `write`, `delete`;
        `provision`: of a machine, once it runs. `where`: part of the resource's id."""
        told = message or f"{code} (stand-in)"
        self.do("fail_later", kind=kind, doing=verb, code=code, message=told, where=where, times=times)

    def enforce(self, allowed: Mapping[str, Sequence[str]] | None) -> None:
        """From now on a name may do only what these globs of actions say (`Microsoft.Compute/virtualMachines/*`); None:
        everything. Machines may ever only do what they were assigned roles for."""
        self.do("enforce", allowed=None if allowed is None else {name: list(globs) for name, globs in allowed.items()})

    def used(self) -> set[tuple[str, str]]:
        """(name, action) that calls have needed since enforce()."""
        return {(name, action) for name, action in self.do("used")}

    def revoke(self, name: str) -> None:
        """Tokens that it holds are not valid any more."""
        self.do("revoke", name=name)

    def evict(self, name: str, seconds: float = 30.0) -> None:
        """A Spot machine is told, and evicted after so long, or once it lets it."""
        self.do("evict", name=name, seconds=seconds)

    def maintain(self, name: str, kind: str, seconds: float) -> None:
        """`Freeze`, `Reboot`, `Redeploy` or `Terminate` is announced, and happens after so long, or once it lets it."""
        self.do("maintain", name=name, kind=kind, seconds=seconds)

    def crash(self, name: str) -> None:
        """Its host fails: everything on it is gone at once; it boots again with its disk."""
        self.do("crash", name=name)

    def sicken(self, name: str) -> None:
        """A machine of a scale set does not answer its health extension any more."""
        self.do("sicken", name=name)

    def fail_now(self, name: str, code: str) -> None:
        """It ran, and does no more: Azure was to start it elsewhere and could not, for this reason ("": it tells of
        none)."""
        self.do("fail_now", name=name, code=code)

    def reboot(self, name: str) -> None:
        """Everything on it is killed; it boots again with its disk."""
        self.do("reboot", name=name)

    def instances(self, **where: Any) -> list[Told]:
        """All that ever were; `where` compares fields: `instances(running=True, zone="1")`."""
        told = [Told(**value) for value in self.do("instances")]
        return [one for one in told if all(getattr(one, name) == value for name, value in where.items())]

    def resources(self, kind: str) -> list[dict[str, Any]]:
        """Of a kind (`Microsoft.Compute/disks`), all resources, as the API shows them."""
        found: list[dict[str, Any]] = self.do("resources", kind=kind)
        return found

    def all_resources(self) -> list[str]:
        """Ids of everything that is there, groups and role assignments among it."""
        return [str(one) for one in self.do("all_resources")]


def environ(url: str, folder: Path, name: str = SUBMITTER) -> dict[str, str]:
    """What points any client of Azure's to the stand-in at this URL, as this application. `folder` is for az's own."""
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, str] = AzureControl(url).do("environ", name=name)
    # The tester's own settings must not reach the stand-in, nor this get mixed with them.
    return {**told, "AZURE_CONFIG_DIR": str(folder / "azure")}
