"""Host module for Azure virtual machines, which deallocate themselves.

A machine that only powers off stays allocated and is billed as if it ran ("States and billing status of Azure Virtual
Machines"). It therefore calls Resource Manager to deallocate itself, with its managed identity, which may start and
deallocate it but neither create nor delete anything ("Desktop Virtualization Power On Off Contributor" on the launch's
resource group). It retries until the call succeeds: a stopped machine is still billed and cannot retry. Its disk is
billed until the supervisor or `cloudgpu gc` deletes the resource group.
"""

from __future__ import annotations

import json
import math
import os
import urllib.request
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - must compile in older Pythons, too

if TYPE_CHECKING:
    from .bucket_az import METADATA, metadata, send, token
    from .common import (
        ErrorResponse,
        PermanentError,
        command,
        log,
        pending_shutdown,
        power_off,
        retry,
        schedule_shutdown,
    )
else:
    from bucket_az import METADATA, metadata, send, token
    from common import (
        ErrorResponse,
        PermanentError,
        command,
        log,
        pending_shutdown,
        power_off,
        retry,
        schedule_shutdown,
    )

KNOWN_S = 900.0  # "Troubleshoot Azure RBAC": a role assignment takes up to ten minutes to propagate
ANSWER_S = 15.0
REST_S = 60.0  # longest pause between calls to deallocate: Compute limits calls per hour
GOING_S = 10.0  # the program has been stopped before this; systemd waits for 45 s in all
LAST_S = 2.0  # timeout of the metadata service while the machine goes down
RETURNS = ("reboot", "redeploy")
"""Scheduled events after which Azure restarts the machine with its disk."""
INSTANCE = {"api-version": "2021-02-01", "format": "text"}
EVENTS = {"api-version": "2020-07-01"}
DEALLOCATE = "api-version=2024-07-01"
CANNOT = "this machine cannot deallocate itself, and is paid for until it can or is deleted"


class Host:
    """Machine on which the bootstrap runs: its identity, environment and end."""

    STOPPED = 0  # exit code if SIGTERM comes before the agent starts: the unit must not fail
    RETRY_TIMEOUT_S = KNOWN_S

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.stays_down = False

    def name(self) -> str:
        """Return the machine's unique id; VM names are the same in each launch."""
        return metadata("instance/compute/vmId", INSTANCE)

    def node(self) -> str:
        return str(self.record["node"])

    def address(self) -> str | None:
        """Return the address at which other nodes reach this one; None: the agent determines it."""
        return None

    def environment(self) -> dict[str, str]:
        """Return environment variables of the agent and the program; Azure's libraries use the identity of this client
        id."""
        variables = {"HOME": "/root", "AZURE_CLIENT_ID": str(self.record["identity"])}
        if os.environ.get(METADATA):  # in tests; the variable's name is obstore's
            variables["AZURE_MSI_ENDPOINT"] = f"{os.environ[METADATA].rstrip('/')}/metadata/identity/oauth2/token"
        of_tests = {
            "AZURE_STORAGE_ENDPOINT": self.record["endpoint"],
            "CLOUDGPU_AZURE_ENDPOINT": self.record["api_endpoint"],
        }
        return variables | {name: url for name, url in of_tests.items() if url}

    def schedule_shutdown(self, left_s: float) -> None:
        schedule_shutdown(left_s)

    def comes_back(self) -> bool:
        """Return whether the machine that goes down will boot again: a reboot, or Azure moves it to another host."""
        where = pending_shutdown()
        back = where == "reboot" or (where == "poweroff" and is_moved(own_name))
        self.stays_down = where == "poweroff" and not back
        return back

    def end(self, going_down: bool, _code: Callable[[], int], _has_ended: Callable[[str], bool]) -> bool:
        """End the machine, whose node has ended; return whether that succeeded."""
        if not going_down or not pending_shutdown():
            command("shutdown", "-c")  # scheduled by schedule_shutdown(); a stopped machine is billed
            retry(CANNOT, self.deallocate, math.inf, REST_S)
            return power_off()
        if self.stays_down:
            try:
                retry(CANNOT, self.deallocate, GOING_S)
            except PermanentError as error:
                log(str(error))
                return False
        return True

    def deallocate(self) -> None:
        """Request that this machine is deallocated; return when that is accepted. Raises OSError."""
        base = (self.record["api_endpoint"] or "https://management.azure.com").rstrip("/")
        url = f"{base}{metadata('instance/compute/resourceId', INSTANCE)}/deallocate?{DEALLOCATE}"
        request = urllib.request.Request(url, data=b"", method="POST")  # noqa: S310 - URL of Resource Manager
        try:
            send(request, token(str(self.record["identity"]), "https://management.azure.com/"), ANSWER_S)
        except ErrorResponse as error:
            if error.status != 404:  # 404: the machine is being deleted
                raise


def own_name() -> str:
    """Return the machine's name as in scheduled events."""
    return metadata("instance/compute/name", INSTANCE)


def is_moved(name: Callable[[], str]) -> bool:
    """Return whether Azure has announced events after which it restarts this machine; False if that is unknown."""
    try:
        own = name().casefold()
        events = json.loads(metadata("scheduledevents", EVENTS, LAST_S))["Events"]
        kinds = [event["EventType"].casefold() for event in events if own in map(str.casefold, event["Resources"])]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(kinds) and all(kind in (*RETURNS, "freeze") for kind in kinds) and set(kinds) != {"freeze"}
