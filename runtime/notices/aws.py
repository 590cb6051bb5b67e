"""Notices of AWS: from the instance metadata service (IMDSv2), and of the end of a Capacity Block.

Paths, values and dates follow the EC2 user guide and aws-node-termination-handler's `pkg/ec2metadata`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...protocol.fleet.records import BLOCK_ENDS_EARLY_S
from .metadata import LINK_LOCAL, Look, MetadataError, MetadataServer, Reply, epoch_of
from .policy import rows
from .scheduled_notices import ProviderNotice

_IPV6 = "http://[fd00:ec2::254]"
_TOKEN = "/latest/api/token"  # noqa: S105 - a path
_TTL_S = 21_600
_POLL_S = 5.0  # as AWS advises

_EC2 = "docs.aws.amazon.com/AWSEC2/latest/UserGuide/"
_SPOT = _EC2 + "spot-instance-termination-notices.html"
_REBALANCE = _EC2 + "rebalance-recommendations.html"
_EVENTS = _EC2 + "viewing_scheduled_events.html"
_GROUP = "docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html"
_BLOCK = _EC2 + "capacity-blocks-monitor.html"
# fmt: off
POLICIES = rows("aws", (
    # kind, action, word, lead, near, stop, margin, source, acknowledged, vanishes, returns
    ("spot-terminate", "stop", "preempt", 120, None, None, 10, _SPOT),
    ("spot-stop", "stop", "preempt", 120, None, None, 10, _SPOT),
    # Hibernation begins at once: 30 s is an estimate of the time that is left before it, or after the machine wakes.
    ("spot-hibernate", "stop", "preempt", 30, None, None, 5, _SPOT),
    # An elevated risk of interruption, without a time; it may not happen.
    ("rebalance-recommendation", "save", "preempt", 3600, None, None, 0, _REBALANCE),
    ("instance-stop", "save", "terminate", 900, 900, 120, 10, _EVENTS),
    ("instance-retirement", "save", "terminate", 900, 900, 120, 10, _EVENTS),
    ("instance-reboot", "save", "reboot", 900, 900, 120, 10, _EVENTS),
    ("system-reboot", "save", "reboot", 900, 900, 120, 10, _EVENTS),
    # Network or power may fail for a moment.
    ("system-maintenance", "save", "maintenance", 900, 900, None, 0, _EVENTS),
    # The state lasts until the Auto Scaling group's lifecycle hook times out; without a hook, shutdown begins at once.
    ("lifecycle-terminated", "stop", "terminate", 60, None, None, 10, _GROUP),
    ("lifecycle-warmed", "stop", "terminate", 60, None, None, 10, _GROUP),
    # AWS warns 10 min before termination begins, which is 30 min before the end of the paid time.
    ("capacity-block-end", "save", "terminate", 600, 600, 120, 10, _BLOCK),
))
# fmt: on


class Imds:
    """Client of IMDSv2. Its session token is renewed before it expires and when it is refused. Thread-safe."""

    def __init__(self, server: MetadataServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._lock = threading.Lock()
        self._token, self._renew, self._expires = "", 0.0, 0.0

    def get(self, path: str) -> Reply | None:
        """Return the reply if its status is 200; None for 404, which means no notice. Raises MetadataError."""
        token = self._valid_token()
        reply = self._server.request(path, {"X-aws-ec2-metadata-token": token})
        if reply.status == 401:
            reply = self._server.request(path, {"X-aws-ec2-metadata-token": self._valid_token(refused=token)})
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise self._server.refusal(reply)
        return reply

    def _valid_token(self, refused: str | None = None) -> str:
        with self._lock:
            now = self._clock()
            if refused == self._token:
                self._renew = self._expires = now
            if now >= self._renew:
                try:
                    self._fetch(now)
                except MetadataError:
                    if now >= self._expires:  # otherwise the old token is still valid
                        raise
            return self._token

    def _fetch(self, now: float) -> None:
        asked = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TTL_S)}
        reply = self._server.request(_TOKEN, asked, method="PUT", body=b"")
        if reply.status != 200 or not reply.text.isascii() or not reply.text.isprintable() or not reply.text:
            raise self._server.refusal(reply)
        ttl = reply.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        ttl_s = min(int(ttl), _TTL_S) if ttl.isdecimal() and len(ttl) < 9 else _TTL_S
        self._token, self._renew, self._expires = reply.text, now + 0.8 * ttl_s, now + ttl_s


@dataclass
class MetadataPoll:
    """Poll of one path of the metadata service, which exists only while there is a notice."""

    imds: Imds
    name: str
    read: Callable[[Reply], Sequence[ProviderNotice]]
    pause_s: float = _POLL_S

    def look(self) -> Sequence[ProviderNotice]:
        reply = self.imds.get(f"/latest/meta-data/{self.name}")
        return [] if reply is None else self.read(reply)


def spot_action(reply: Reply) -> list[ProviderNotice]:
    """Parse `{"action": "terminate" | "stop" | "hibernate", "time": "2026-09-18T08:22:00Z"}`."""
    said = reply.json(dict)
    action = str(said.get("action", "terminate")).lower()
    epoch = epoch_of(said.get("time"))
    # For a hibernation, `time` is the time of the notice.
    starts = None if epoch is None or action == "hibernate" else reply.when(epoch, at_most_s=180.0)
    return [ProviderNotice("aws", f"spot-{action}", f"spot-{action}", starts)]


def rebalance(reply: Reply) -> list[ProviderNotice]:
    """Parse `{"noticeTime": "2026-09-18T08:22:00Z"}`; a new time is a new recommendation."""
    return [ProviderNotice("aws", "rebalance-recommendation", f"rebalance-{reply.json(dict).get('noticeTime')}")]


def scheduled_events(reply: Reply) -> list[ProviderNotice]:
    """Parse a list of events; `NotBefore` is like "21 Jan 2019 09:00:43 GMT". Inactive events are over or withdrawn."""
    notices = []
    for event in reply.json(list):
        if not isinstance(event, dict) or str(event.get("State", "active")).lower() != "active":
            continue
        epoch = epoch_of(event.get("NotBefore"))
        starts = None if epoch is None else reply.when(epoch)
        kind, identity = str(event.get("Code", "unknown")).lower(), str(event.get("EventId", event.get("Code")))
        notices.append(ProviderNotice("aws", kind, identity, starts))
    return notices


def lifecycle_state(reply: Reply) -> list[ProviderNotice]:
    """Parse Auto Scaling's target lifecycle state: "Terminated", or "Warmed:…" for a move to the warm pool."""
    state = reply.text.lower()
    kind = "lifecycle-warmed" if state.startswith("warmed:") and state != "warmed:running" else f"lifecycle-{state}"
    gone = kind == "lifecycle-warmed" or state == "terminated"
    return [ProviderNotice("aws", kind, kind)] if gone else []


@dataclass
class CapacityBlock:
    """Notice of the end of a Capacity Block, in epoch seconds, which is passed at launch.

    The metadata service does not report this end; only the Date header of its replies is used, to correct this
    machine's clock.
    """

    imds: Imds
    end: float
    name: str = "capacity-block"
    pause_s: float = 60.0

    def look(self) -> Sequence[ProviderNotice]:
        begins = self.end - BLOCK_ENDS_EARLY_S
        try:
            reply = self.imds.get("/latest/meta-data/instance-id")
        except MetadataError:
            reply = None
        starts = None if reply is None else reply.when(begins)
        if starts is None:
            starts = time.monotonic() + begins - time.time()
        return [ProviderNotice("aws", "capacity-block-end", "capacity-block", starts)]


QUESTIONS: tuple[tuple[str, Callable[[Reply], Sequence[ProviderNotice]]], ...] = (
    ("spot/instance-action", spot_action),
    ("events/recommendations/rebalance", rebalance),
    ("events/maintenance/scheduled", scheduled_events),
    ("autoscaling/target-lifecycle-state", lifecycle_state),
)


def looks(
    environ: Mapping[str, str], say: Callable[[str], None], capacity_block_end: float | None = None
) -> list[Look]:
    """Return the polls for AWS; the service's address is read from the environment variables that botocore uses.

    Raises MetadataError if the address is invalid.
    """
    ipv6 = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower() == "ipv6"
    url = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or (_IPV6 if ipv6 else LINK_LOCAL)
    imds = Imds(MetadataServer(url, say))
    asked: list[Look] = []
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
        asked += [MetadataPoll(imds, name, read) for name, read in QUESTIONS]
    if capacity_block_end is not None:
        asked.append(CapacityBlock(imds, capacity_block_end))
    return asked
