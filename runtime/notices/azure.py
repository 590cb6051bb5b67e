"""Notices of Azure: Scheduled Events of the instance metadata service.

The service lists the events of the whole scale set, availability set or placement group; those of other machines are
ignored. The first request enables the service and may take two minutes; it is disabled after a day without requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .metadata import LINK_LOCAL, Look, MetadataError, MetadataServer, Reply, epoch_of
from .policy import rows
from .scheduled_notices import ProviderNotice

_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}
_MACHINE = re.compile(r"[\w.-]{1,80}")
_FIRST_S = 150.0
_LATER_S = 10.0
# If such an event is in progress at the agent's first poll, the machine has already come back from it.
_SURVIVED = frozenset({"reboot", "redeploy", "freeze"})

_AZURE = "learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"
# fmt: off
POLICIES = rows("azure", (
    # kind, action, word, lead, near, stop, margin, source, acknowledged, vanishes, returns
    ("freeze", "ignore", "freeze", 900, None, None, 0, _AZURE),
    # The machine is restarted with its disk; for a redeployment on another host. See ends_at_once().
    ("reboot", "save", "reboot", 900, 900, 120, 10, _AZURE, True, False, True),
    ("redeploy", "save", "reboot", 600, 900, 120, 10, _AZURE, True, False, True),
    ("preempt", "stop", "preempt", 30, None, None, 5, _AZURE, True),
    ("terminate", "save", "terminate", 300, 900, 120, 10, _AZURE, True),
))
# fmt: on


class ScheduledEvents:
    """Poll of Scheduled Events, once a second as Azure advises. The first poll also reads the machine's name."""

    name = "scheduledevents"
    pause_s = 1.0

    def __init__(self, server: MetadataServer, first_s: float = _FIRST_S) -> None:
        self._server = server
        self._timeout_s = first_s
        self._incarnation: Any = None
        self._notices: list[ProviderNotice] = []
        self._survived: set[str] | None = None
        self.machine: str | None = None
        """This machine's name; None until it is known."""

    def look(self) -> Sequence[ProviderNotice]:
        """Return the events of this machine. Raises MetadataError."""
        if self.machine is None:
            self.machine = self._own_name()
        reply = self._answer(_EVENTS, self._timeout_s)
        self._timeout_s = min(self._timeout_s, _LATER_S)
        document = reply.json(dict)
        incarnation = document.get("DocumentIncarnation")
        if incarnation is None or incarnation != self._incarnation:
            self._notices = self._read(document, reply)
            self._incarnation = incarnation
        return self._notices

    def acknowledge(self, event_id: str) -> None:
        """Acknowledge an event, so that it begins on all its machines. Raises MetadataError."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        headers = {**_HEADERS, "Content-Type": "application/json"}
        reply = self._server.request(_EVENTS, headers, method="POST", body=body, timeout_s=_LATER_S)
        if reply.status != 200:
            raise self._server.refusal(reply)

    def _own_name(self) -> str:
        name = self._answer(_NAME, None).text
        if not _MACHINE.fullmatch(name):
            raise MetadataError("the metadata server does not know this machine's name")
        return name.casefold()

    def _answer(self, path: str, timeout_s: float | None) -> Reply:
        reply = self._server.request(path, _HEADERS, timeout_s=timeout_s)
        if reply.status != 200:
            raise self._server.refusal(reply)
        return reply

    def _read(self, document: dict[str, object], reply: Reply) -> list[ProviderNotice]:
        events = document.get("Events", [])
        if not isinstance(events, list):
            raise MetadataError("the metadata server's answer has no list of events")
        own = [notice for event in events if isinstance(event, dict) for notice in self._notice(event, reply)]
        begun = {notice.id for notice in own if notice.kind in _SURVIVED and notice.starts == reply.received}
        if self._survived is None:
            self._survived = begun
        return [notice for notice in own if notice.id not in self._survived]

    def _notice(self, event: dict[str, object], reply: Reply) -> list[ProviderNotice]:
        named = event.get("Resources")
        machines = tuple(str(name).casefold() for name in named) if isinstance(named, list) else ()
        if self.machine not in machines:
            return []
        starts = None
        if str(event.get("EventStatus", "")).lower() == "started":
            starts = reply.received
        elif (epoch := epoch_of(event.get("NotBefore"))) is not None:
            starts = reply.when(epoch)
        kind, identity = str(event.get("EventType", "unknown")).lower(), str(event.get("EventId", ""))
        detail = f"azure ({event['Description']})" if event.get("Description") else ""
        return [ProviderNotice("azure", kind, identity, starts, detail, machines)]


def looks(
    environ: Mapping[str, str], say: Callable[[str], None], _capacity_block_end: float | None = None
) -> list[Look]:
    """Return the polls for Azure; CLOUDGPU_AZURE_METADATA overrides the service's address. Raises MetadataError."""
    return [ScheduledEvents(MetadataServer(environ.get("CLOUDGPU_AZURE_METADATA") or LINK_LOCAL, say))]
