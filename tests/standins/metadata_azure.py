"""Azure's instance metadata service: this machine's name, and Scheduled Events.

It follows learn.microsoft.com/azure/virtual-machines/linux/scheduled-events: 400 without `Metadata: true` or
api-version; the first request is slow; events come in a document with its incarnation; StartRequests start events
immediately, which empties NotBefore.
"""

from __future__ import annotations

import json
import time
import uuid
from email.utils import formatdate
from typing import Any

from .metadata import Answer, MetadataServer, Request

EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"


class AzureMetadata(MetadataServer):
    """Metadata service for the machine `name`. `first_s`: seconds that the first request for events takes."""

    def __init__(self, name: str = "Trainer_0", first_s: float = 0.0) -> None:
        super().__init__()
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.incarnation = 1
        self.started: list[str] = []
        """Ids of acknowledged events."""
        self._enabled_at: float | None = None
        self._first_s = first_s

    def announce(self, kind: str, after_s: float | None, *machines: str, event_id: str | None = None) -> str:
        """Publish an event for these machines, by default this one; return its id. `after_s` None: it has started."""
        identity = event_id or str(uuid.uuid4()).upper()
        not_before = "" if after_s is None else formatdate(time.time() + self.clock_off_s + after_s, usegmt=True)
        event = {
            "EventId": identity,
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(machines or (self.name,)),
            "EventStatus": "Scheduled" if not_before else "Started",
            "NotBefore": not_before,
            "Description": "Host server is undergoing maintenance.",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self.events = [*(event for event in self.events if event["EventId"] != identity), event]
        self.incarnation += 1
        return identity

    def over(self, identity: str) -> None:
        self.events = [event for event in self.events if event["EventId"] != identity]
        self.incarnation += 1

    def preempt(self) -> None:
        """Announce a preemption in 180 s, not Azure's half minute, so that the program can save even on a busy
        computer."""
        self.announce("Preempt", 180)

    def answer(self, request: Request) -> Answer:
        if request.headers.get("Metadata") != "true" or "api-version" not in request.query:
            return Answer(400, '{"error": "Bad request"}')
        if request.path == NAME:
            return Answer(body=self.name)
        if request.path != EVENTS:
            return Answer(404)
        if request.method == "POST":
            return self._start(json.loads(request.body))
        self._enabled_at = self._enabled_at or time.monotonic() + self._first_s
        self.closing.wait(max(0.0, self._enabled_at - time.monotonic()))
        return Answer(body=json.dumps({"DocumentIncarnation": self.incarnation, "Events": self.events}))

    def _start(self, body: dict[str, Any]) -> Answer:
        known = {event["EventId"] for event in self.events}
        wanted = [str(request["EventId"]) for request in body["StartRequests"]]
        if not set(wanted) <= known:
            return Answer(400, '{"error": "unknown event"}')
        self.started += wanted
        for event in self.events:
            if event["EventId"] in wanted:
                event.update(EventStatus="Started", NotBefore="")
        self.incarnation += 1
        return Answer()
