"""Host module for Compute Engine machines, which delete themselves.

The disk of an instance that only powers off is still billed. The machine therefore calls the Compute Engine API to
delete itself, with its service account. If that is refused it powers off, and the supervisor deletes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - must compile in older Pythons, too

if TYPE_CHECKING:
    from .bucket_gs import PASSING, metadata, send
    from .common import ErrorResponse, PermanentError, log, pending_shutdown, power_off, retry, schedule_shutdown
else:
    from bucket_gs import PASSING, metadata, send
    from common import ErrorResponse, PermanentError, log, pending_shutdown, power_off, retry, schedule_shutdown

DELETE_S = 120.0  # the whole machine is billed meanwhile; later only its disk
ANSWER_S = 15.0
GOING_S = 10.0  # the program has been stopped before this; systemd waits for 45 s in all
LAST_S = 2.0  # timeout of the metadata server while the machine goes down


class Host:
    """Machine on which the bootstrap runs: its identity, environment and end."""

    STOPPED = 0  # exit code if SIGTERM comes before the agent starts: the unit must not fail

    RETRY_TIMEOUT_S = 300.0  # a new role takes time to propagate, and the network may come up late

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.stays_down = False

    def name(self) -> str:
        return metadata("instance/name")

    def node(self) -> str:
        return str(self.record["node"])

    def address(self) -> str | None:
        """Return the address at which other nodes reach this one; None: the agent determines it."""
        return None

    def environment(self) -> dict[str, str]:
        """Return environment variables of the agent and the program; Google's libraries need a project."""
        variables = {"HOME": "/root"}
        try:
            variables["GOOGLE_CLOUD_PROJECT"] = metadata("project/project-id")
        except OSError as error:
            log(f"the project is not told: {error}")
        of_tests = {
            "STORAGE_EMULATOR_HOST": self.record["endpoint"],
            "CLOUDGPU_GCP_ENDPOINT": self.record["api_endpoint"],
        }
        return variables | {name: url for name, url in of_tests.items() if url}

    def schedule_shutdown(self, left_s: float) -> None:
        schedule_shutdown(left_s)

    def comes_back(self) -> bool:
        """Return whether the machine that goes down will boot again: a reboot, or host maintenance with automatic
        restart."""
        where = pending_shutdown()
        back = where == "reboot" or (where == "poweroff" and is_restarted() and is_maintained())
        self.stays_down = where == "poweroff" and not back
        return back

    def end(self, going_down: bool, _code: Callable[[], int], _has_ended: Callable[[str], bool]) -> bool:
        """End the machine, whose node has ended; return whether that succeeded."""
        down = going_down and bool(pending_shutdown())
        if down and not self.stays_down:
            return True
        try:
            retry("this machine cannot delete itself", self.delete, GOING_S if down else DELETE_S)
        except PermanentError as error:
            log(f"{error}. It powers itself off; its disk is paid for until the supervisor or `cloudgpu gc` deletes it")
        return down or power_off()

    def delete(self) -> None:
        """Request that this instance is deleted; return when that is accepted. Raises OSError, PermanentError."""
        name, project = metadata("instance/name"), metadata("project/project-id")
        zone = metadata("instance/zone").rpartition("/")[2]
        base = (self.record["api_endpoint"] or "https://compute.googleapis.com").rstrip("/")
        url = f"{base}/compute/v1/projects/{project}/zones/{zone}/instances/{name}"
        try:
            send("DELETE", url, timeout=ANSWER_S)
        except ErrorResponse as error:
            if error.status == 404:  # already being deleted
                return
            if error.status in (400, 403) and error.code not in PASSING:
                raise PermanentError(f"this machine may not delete itself: {error}") from error
            raise


def is_restarted() -> bool:
    """Return whether this instance has automatic restart, i.e. Compute Engine restarts it after stopping it."""
    return asked("instance/scheduling/automatic-restart").strip().upper() == "TRUE"


def is_maintained() -> bool:
    """Return whether maintenance of the instance's host is in progress, or begins within the hour."""
    if asked("instance/maintenance-event").strip().upper() == "TERMINATE_ON_HOST_MAINTENANCE":
        return True
    try:
        maintenance = json.loads(asked("instance/upcoming-maintenance?alt=json"))
    except ValueError:
        return False
    values = maintenance.values() if isinstance(maintenance, dict) else ()
    return "ONGOING" in values  # value of maintenanceStatus or maintenance_status: both spellings occur


def asked(path: str) -> str:
    """Return a value of the metadata server; "" if it does not answer, so that an unknown state counts as no
    restart."""
    try:
        return metadata(path, LAST_S)
    except OSError:
        return ""
