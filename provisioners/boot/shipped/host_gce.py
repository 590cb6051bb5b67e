"""A machine of Compute Engine: it deletes itself.

An instance that powers itself off stays, and its disk is paid for: so the Compute Engine API is asked to delete it, by
the machine's own service account. Where that is refused the machine powers itself off, and the supervisor deletes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - also read by Pythons that are too old to run it

if TYPE_CHECKING:
    from .bucket_gs import PASSING, metadata, send
    from .common import Hopeless, Refused, goes_down_to, insist, limit_life, power_off, say
else:
    from bucket_gs import PASSING, metadata, send
    from common import Hopeless, Refused, goes_down_to, insist, limit_life, power_off, say

DELETE_S = 120.0  # meanwhile all of it is paid for; afterwards its disk, until it is deleted
ANSWER_S = 15.0
GOING_S = 10.0  # the program has had its time, and systemd waits for 45 s in all
LAST_S = 2.0  # for the metadata server, while the machine goes down


class Host:
    """What the bootstrap must know of, and can do to, the machine it runs on."""

    STOPPED = 0  # exit code where SIGTERM comes before the agent has begun: the unit has not failed then

    PATIENCE_S = 300.0  # a role that was made a minute ago is not known everywhere yet, a network may come late

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.stays_down = False

    def name(self) -> str:
        return metadata("instance/name")

    def node(self) -> str:
        return str(self.record["node"])

    def address(self) -> str | None:
        """By which other nodes reach this one; None: the agent finds out."""
        return None

    def environment(self) -> dict[str, str]:
        """Of the agent, and of the program: Google's libraries ask for a project."""
        told = {"HOME": "/root"}
        try:
            told["GOOGLE_CLOUD_PROJECT"] = metadata("project/project-id")
        except OSError as error:
            say(f"the project is not told: {error}")
        return told | {"STORAGE_EMULATOR_HOST": self.record["endpoint"]} if self.record["endpoint"] else told

    def limit_life(self, left_s: float) -> None:
        limit_life(left_s)

    def comes_back(self) -> bool:
        """Asked when the machine goes down: after a reboot, and after maintenance of its host where it is restarted."""
        where = goes_down_to()
        back = where == "reboot" or (where == "poweroff" and is_restarted() and is_maintained())
        self.stays_down = where == "poweroff" and not back
        return back

    def end(self, going_down: bool, _code: Callable[[], int], _has_ended: Callable[[str], bool]) -> bool:
        """End the machine of a node that has ended, which is not needed any more; return whether it ends."""
        down = going_down and bool(goes_down_to())
        if down and not self.stays_down:
            return True
        try:
            insist("this machine cannot delete itself", self.delete, GOING_S if down else DELETE_S)
        except Hopeless as error:
            say(f"{error}. It powers itself off; its disk is paid for until the supervisor or `cloudgpu gc` deletes it")
        return down or power_off()

    def delete(self) -> None:
        """Have this instance deleted: accepted is enough. Raises OSError, Hopeless."""
        name, project = metadata("instance/name"), metadata("project/project-id")
        zone = metadata("instance/zone").rpartition("/")[2]
        base = (self.record["api_endpoint"] or "https://compute.googleapis.com").rstrip("/")
        url = f"{base}/compute/v1/projects/{project}/zones/{zone}/instances/{name}"
        try:
            send("DELETE", url, timeout=ANSWER_S)
        except Refused as error:
            if error.status == 404:  # it is being deleted
                return
            if error.status in (400, 403) and error.code not in PASSING:
                raise Hopeless(f"this machine may not delete itself: {error}") from error
            raise


def is_restarted() -> bool:
    """Whether Compute Engine restarts this instance after it has stopped it."""
    return asked("instance/scheduling/automatic-restart").strip().upper() == "TRUE"


def is_maintained() -> bool:
    """Whether its host is being maintained, or will be within the hour."""
    if asked("instance/maintenance-event").strip().upper() == "TERMINATE_ON_HOST_MAINTENANCE":
        return True
    try:
        told = json.loads(asked("instance/upcoming-maintenance?alt=json"))
    except ValueError:
        return False
    values = told.values() if isinstance(told, dict) else ()
    return "ONGOING" in values  # of maintenanceStatus, or maintenance_status: both spellings are about


def asked(path: str) -> str:
    """What the metadata server says; nothing where it does not: what is not known to come back is not waited for."""
    try:
        return metadata(path, LAST_S)
    except OSError:
        return ""
