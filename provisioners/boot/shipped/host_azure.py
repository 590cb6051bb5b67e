"""A virtual machine of Azure: it deallocates itself.

One that only powers itself off stays allocated, and is paid for as if it ran ("States and billing status of Azure
Virtual Machines"). So Resource Manager is asked to deallocate it, by the machine's own identity, which may do that and
start it, and neither make nor delete anything ("Desktop Virtualization Power On Off Contributor" on the launch's
group). It asks until it is heard: off, it would be paid for just the same, and could ask no more. Its disk is paid for
until the supervisor or `cloudgpu gc` deletes the group.
"""

from __future__ import annotations

import json
import math
import os
import urllib.request
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - also read by Pythons that are too old to run it

if TYPE_CHECKING:
    from .bucket_az import METADATA, metadata, send, token
    from .common import Hopeless, Refused, command, goes_down_to, insist, limit_life, power_off, say
else:
    from bucket_az import METADATA, metadata, send, token
    from common import Hopeless, Refused, command, goes_down_to, insist, limit_life, power_off, say

KNOWN_S = 900.0  # from the launch on; "Troubleshoot Azure RBAC": a role assignment is known after up to ten minutes
ANSWER_S = 15.0
REST_S = 60.0  # between one call to be deallocated and the next, in the end: Compute counts calls by the hour
GOING_S = 10.0  # the program has had its time, and systemd waits for 45 s in all
LAST_S = 2.0  # for the metadata service, while the machine goes down
RETURNS = ("reboot", "redeploy")
"""Scheduled events after which Azure starts the machine again, with its disk."""
INSTANCE = {"api-version": "2021-02-01", "format": "text"}
EVENTS = {"api-version": "2020-07-01"}
DEALLOCATE = "api-version=2024-07-01"
CANNOT = "this machine cannot deallocate itself, and is paid for until it can or is deleted"


class Host:
    """What the bootstrap must know of, and can do to, the machine it runs on."""

    STOPPED = 0  # exit code where SIGTERM comes before the agent has begun: the unit has not failed then
    PATIENCE_S = KNOWN_S

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.stays_down = False

    def name(self) -> str:
        """Of no other machine: their names are the same in each launch."""
        return metadata("instance/compute/vmId", INSTANCE)

    def node(self) -> str:
        return str(self.record["node"])

    def address(self) -> str | None:
        """By which other nodes reach this one; None: the agent finds out."""
        return None

    def environment(self) -> dict[str, str]:
        """Of the agent, and of the program: Azure's libraries ask with the identity of this client id."""
        told = {"HOME": "/root", "AZURE_CLIENT_ID": str(self.record["identity"])}
        if os.environ.get(METADATA):  # in a test; these are obstore's names
            told["AZURE_MSI_ENDPOINT"] = f"{os.environ[METADATA].rstrip('/')}/metadata/identity/oauth2/token"
        return told | {"AZURE_STORAGE_ENDPOINT": self.record["endpoint"]} if self.record["endpoint"] else told

    def limit_life(self, left_s: float) -> None:
        limit_life(left_s)

    def comes_back(self) -> bool:
        """Asked when the machine goes down: after a reboot, its own or Azure's, and after a move to another host."""
        where = goes_down_to()
        back = where == "reboot" or (where == "poweroff" and is_moved(own_name))
        self.stays_down = where == "poweroff" and not back
        return back

    def end(self, going_down: bool, _code: Callable[[], int], _has_ended: Callable[[str], bool]) -> bool:
        """End the machine of a node that has ended, which is not needed any more; return whether it ends."""
        if not going_down or not goes_down_to():
            command("shutdown", "-c")  # of limit_life(): see above
            insist(CANNOT, self.deallocate, math.inf, REST_S)
            return power_off()
        if self.stays_down:
            try:
                insist(CANNOT, self.deallocate, GOING_S)
            except Hopeless as error:
                say(str(error))
                return False
        return True

    def deallocate(self) -> None:
        """Have this machine deallocated: accepted is enough. Raises OSError."""
        base = (self.record["api_endpoint"] or "https://management.azure.com").rstrip("/")
        url = f"{base}{metadata('instance/compute/resourceId', INSTANCE)}/deallocate?{DEALLOCATE}"
        request = urllib.request.Request(url, data=b"", method="POST")  # noqa: S310 - Resource Manager's
        try:
            send(request, token(str(self.record["identity"]), "https://management.azure.com/"), ANSWER_S)
        except Refused as error:
            if error.status != 404:  # it is being deleted
                raise


def own_name() -> str:
    """As scheduled events have it."""
    return metadata("instance/compute/name", INSTANCE)


def is_moved(name: Callable[[], str]) -> bool:
    """Whether Azure has announced what it starts this machine again after; not where it says nothing: what is not known
    to come back is not waited for.
    """
    try:
        own = name().casefold()
        events = json.loads(metadata("scheduledevents", EVENTS, LAST_S))["Events"]
        kinds = [event["EventType"].casefold() for event in events if own in map(str.casefold, event["Resources"])]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(kinds) and all(kind in (*RETURNS, "freeze") for kind in kinds) and set(kinds) != {"freeze"}
