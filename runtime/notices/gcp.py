"""Google Cloud: three keys of the metadata server, each by a long poll that answers when its value changes.

A key is read once as it is; from then on with `wait_for_change` and the `last_etag` of the answer before, so that no
change between two questions is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .docket import ProviderNotice
from .metadata import LINK_LOCAL, Look, MetadataError, MetadataServer, Reply, epoch_of

_BASE = "/computeMetadata/v1/instance/"
_FLAVOR = {"Metadata-Flavor": "Google"}
_WAIT_S = 60
_GRACE_S = 10.0  # an answer after `timeout_sec` is late, not lost
_PAUSE_S = 1.0  # a server that answers at once each time must not be asked without end
_NOTHING_S = 10.0  # a key that is not there cannot be waited for


class Key:
    """One key. After a failure it is read as it is again, so that nothing is waited for that has happened meanwhile."""

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
        """What is announced, after at most `wait_s`. Raises MetadataError, also for 503: it is asked again."""
        etag, self._etag = self._etag, None
        query = [self._query] if self._query else []
        timeout_s = None
        if etag:
            query += ["wait_for_change=true", f"last_etag={quote(etag, safe='')}", f"timeout_sec={self._wait_s}"]
            timeout_s = self._wait_s + _GRACE_S
        path = f"{_BASE}{self._path}" + (f"?{'&'.join(query)}" if query else "")
        reply = self._server.ask(path, _FLAVOR, timeout_s=timeout_s)
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
    """`{"error": "no notifications have been received yet, try again later"}`, under whatever status."""
    try:
        return "error" in reply.json(dict)
    except MetadataError:
        return False


def preempted(reply: Reply) -> list[ProviderNotice]:
    """TRUE or FALSE."""
    return [ProviderNotice("gcp", "preempted", "preempted")] if reply.text.upper() == "TRUE" else []


def maintenance_event(reply: Reply, *, has_gpu: bool) -> list[ProviderNotice]:
    """NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE; the lead time depends on the machine."""
    kind = reply.text.strip('"').lower().replace("_", "-")
    if kind in ("", "none"):
        return []
    if kind == "terminate-on-host-maintenance" and not has_gpu:
        kind += "-without-gpu"
    return [ProviderNotice("gcp", kind, kind)]


def upcoming_maintenance(reply: Reply) -> list[ProviderNotice]:
    """`NONE`, or an object whose keys are spelt in camel case or in snake case."""
    if reply.text.strip('"').upper() in ("", "NONE", "{}"):
        return []
    said = {_snake(key): value for key, value in reply.json(dict).items()}
    begins, ends = (_when(reply, said.get(f"window_{which}_time")) for which in ("start", "end"))
    status = str(said.get("maintenance_status", "PENDING")).upper()
    kind, starts = "upcoming-maintenance", begins
    if status == "ONGOING" or begins is None or begins <= reply.received:
        kind, starts = "maintenance-window-open", ends
    identity = f"{kind} {said.get('window_start_time')}"
    reasons = said.get("maintenance_reasons")
    detail = f"gcp ({', '.join(map(str, reasons))})" if isinstance(reasons, list) and reasons else ""
    return [ProviderNotice("gcp", kind, identity, starts, detail)]


def _when(reply: Reply, text: Any) -> float | None:  # noqa: ANN401 - as JSON has it
    epoch = epoch_of(text)
    return None if epoch is None else reply.when(epoch)


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key).lstrip("_")


def has_gpu() -> bool:
    """Whether this machine has a GPU of NVIDIA's."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def looks(environ: Mapping[str, str], say: Callable[[str], None]) -> list[Look]:
    """What is asked; the address as Google's libraries read it from the environment. Raises MetadataError."""
    server = MetadataServer(environ.get("GCE_METADATA_HOST") or LINK_LOCAL, say)
    gpu = has_gpu()
    return [
        Key(server, "preempted", preempted),
        Key(server, "maintenance-event", lambda reply: maintenance_event(reply, has_gpu=gpu)),
        Key(server, "upcoming-maintenance?alt=json", upcoming_maintenance),
    ]
