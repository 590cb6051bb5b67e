"""Notices of Google Cloud: three keys of the metadata server, each read by a long poll that returns on a change.

The first request for a key does not wait. Later requests have `wait_for_change` and the previous reply's `last_etag`,
so that no change between two requests is missed. A fourth key, `scheduling/automatic-restart`, says whether Compute
Engine restarts the machine after maintenance of its host; it is read when such maintenance is announced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from .metadata import LINK_LOCAL, Look, MetadataError, MetadataServer, Reply, epoch_of
from .policy import rows
from .scheduled_notices import ProviderNotice

_BASE = "/computeMetadata/v1/instance/"
_FLAVOR = {"Metadata-Flavor": "Google"}
_WAIT_S = 60
_GRACE_S = 10.0  # added to `timeout_sec`, as replies may be late
_PAUSE_S = 1.0  # minimum interval, in case the server always replies at once
_NOTHING_S = 10.0  # poll interval for a missing key, for which a long poll is impossible
_THEN_RESTART = "-then-restart"

_PREEMPTED = "docs.cloud.google.com/compute/docs/instances/spot"
_GPU_HOST = "docs.cloud.google.com/compute/docs/gpus/gpu-host-maintenance"
_LIVE = "docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice"
_A3 = "docs.cloud.google.com/ai-hypercomputer/docs/manage/host-events"
# fmt: off
POLICIES = rows("gcp", (
    # kind, action, word, lead, near, stop, margin, source, acknowledged, vanishes, returns
    ("preempted", "stop", "preempt", 30, None, None, 5, _PREEMPTED),
    ("terminate-on-host-maintenance", "save", "maintenance", 3600, None, 120, 10, _GPU_HOST),
    ("terminate-on-host-maintenance-without-gpu", "stop", "maintenance", 60, None, None, 5, _LIVE),
    # The two kinds above, for a machine that Compute Engine restarts afterwards (scheduling.automaticRestart).
    ("terminate-on-host-maintenance-then-restart", "save", "maintenance", 3600, None, 120, 10, _GPU_HOST,
        False, False, True),
    ("terminate-on-host-maintenance-without-gpu-then-restart", "stop", "maintenance", 60, None, None, 5, _LIVE,
        False, False, True),
    ("migrate-on-host-maintenance", "ignore", "freeze", 60, None, None, 0, _LIVE),
    # Announced up to 90 days ahead.
    ("upcoming-maintenance", "save", "maintenance", 3600, 3600, 120, 10, _A3),
    # A window is hours long: a node that will resume on the same machine trains until its maintenance begins.
    ("upcoming-maintenance-then-restart", "save", "maintenance", 3600, 3600, None, 0, _A3),
    # `maintenance-event` says when maintenance of this machine begins.
    ("maintenance-window-open", "save", "maintenance", 3600, None, None, 0, _A3),
))
# fmt: on


class Key:
    """Poll of one key. After a failed request, the next request does not wait, so that no change is missed."""

    def __init__(
        self,
        server: MetadataServer,
        name: str,
        read: Callable[[Reply], Sequence[ProviderNotice]],
        wait_s: int = _WAIT_S,
    ) -> None:
        self.name = name
        self.pause_s = _PAUSE_S
        self._server, self._read, self._wait_s = server, read, wait_s
        self._path, _, self._query = name.partition("?")
        self._etag: str | None = None

    def look(self) -> Sequence[ProviderNotice]:
        """Return the current notices; block for up to `wait_s` seconds. Raises MetadataError, also for status 503."""
        etag, self._etag = self._etag, None
        query = [self._query] if self._query else []
        timeout_s = None
        if etag:
            query += ["wait_for_change=true", f"last_etag={quote(etag, safe='')}", f"timeout_sec={self._wait_s}"]
            timeout_s = self._wait_s + _GRACE_S
        path = f"{_BASE}{self._path}" + (f"?{'&'.join(query)}" if query else "")
        reply = self._server.request(path, _FLAVOR, timeout_s=timeout_s)
        if reply.headers.get("Metadata-Flavor") != "Google":
            raise MetadataError(f"what answers at {self._server.name} is not Google's metadata server")
        if reply.status == 404 or _has_error(reply):
            self.pause_s = _NOTHING_S
            return []
        if reply.status != 200:
            raise self._server.refusal(reply)
        self._etag = reply.headers.get("ETag")
        self.pause_s = _PAUSE_S
        return self._read(reply)


def _has_error(reply: Reply) -> bool:
    """Return whether a reply is `{"error": "no notifications have been received yet, try again later"}` or similar.

    The server sends it with various statuses.
    """
    try:
        return "error" in reply.json(dict)
    except MetadataError:
        return False


def preempted(reply: Reply) -> list[ProviderNotice]:
    """Parse the value of `preempted`, TRUE or FALSE."""
    return [ProviderNotice("gcp", "preempted", "preempted")] if reply.text.upper() == "TRUE" else []


def maintenance_event(reply: Reply, *, has_gpu: bool, is_restarted: Callable[[], bool]) -> list[ProviderNotice]:
    """Return the notice of the value of `maintenance-event`, in a list; [] for NONE.

    The other values are MIGRATE_ON_HOST_MAINTENANCE and TERMINATE_ON_HOST_MAINTENANCE; for the latter, the
    notice's kind depends on whether the machine has a GPU and is restarted afterwards.
    """
    said = kind = reply.text.strip('"').lower().replace("_", "-")
    if said in ("", "none"):
        return []
    if said == "terminate-on-host-maintenance":
        kind += "" if has_gpu else "-without-gpu"
        kind += _THEN_RESTART if is_restarted() else ""
    return [ProviderNotice("gcp", kind, said)]


def upcoming_maintenance(reply: Reply, *, is_restarted: Callable[[], bool]) -> list[ProviderNotice]:
    """Parse the value of `upcoming-maintenance`: NONE, or a JSON object with keys in camel case or snake case."""
    if reply.text.strip('"').upper() in ("", "NONE", "{}"):
        return []
    said = {_snake(key): value for key, value in reply.json(dict).items()}
    begins, ends = (_when(reply, said.get(f"window_{which}_time")) for which in ("start", "end"))
    status = str(said.get("maintenance_status", "PENDING")).upper()
    kind, starts = "upcoming-maintenance", begins
    if status == "ONGOING" or begins is None or begins <= reply.received:
        kind, starts = "maintenance-window-open", ends
    elif is_restarted():
        kind += _THEN_RESTART
    identity = f"{kind} {said.get('window_start_time')}"
    reasons = said.get("maintenance_reasons")
    detail = f"gcp ({', '.join(map(str, reasons))})" if isinstance(reasons, list) and reasons else ""
    return [ProviderNotice("gcp", kind, identity, starts, detail)]


def _when(reply: Reply, text: object) -> float | None:  # `text` is from JSON
    epoch = epoch_of(text)
    return None if epoch is None else reply.when(epoch)


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key).lstrip("_")


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def automatic_restart(server: MetadataServer) -> bool:
    """Return whether Compute Engine restarts this machine after stopping it. Raises MetadataError."""
    reply = server.request(f"{_BASE}scheduling/automatic-restart", _FLAVOR)
    if reply.status not in (200, 404):
        raise server.refusal(reply)
    return reply.status == 200 and reply.text.upper() == "TRUE"


def looks(
    environ: Mapping[str, str], say: Callable[[str], None], _capacity_block_end: float | None = None
) -> list[Look]:
    """Return the polls for Google Cloud; GCE_METADATA_HOST overrides the server's address, as in Google's libraries.

    Raises MetadataError if the address is invalid.
    """
    server = MetadataServer(environ.get("GCE_METADATA_HOST") or LINK_LOCAL, say)
    # Vertex AI sets CLUSTER_SPEC. Its containers lose their disk in a restart of their machine.
    restarts = partial(automatic_restart, server) if "CLUSTER_SPEC" not in environ else lambda: False
    return [
        Key(server, "preempted", preempted),
        Key(server, "maintenance-event", partial(maintenance_event, has_gpu=has_gpu(), is_restarted=restarts)),
        Key(server, "upcoming-maintenance?alt=json", partial(upcoming_maintenance, is_restarted=restarts)),
    ]
