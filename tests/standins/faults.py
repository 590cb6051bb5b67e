"""Fault injection for stand-ins: the kinds of faults, the rules that trigger them, and the record of calls.

This module is independent of the cloud. A stand-in creates a `Call` for each request, asks `Ledger.open()` for a fault,
applies it, and calls `Ledger.close()`. Tests reach the ledger over HTTP through a `Control` with the same verbs,
whether the stand-in is a thread of the test's process or a separate process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import psutil

CONTROL = "/_standin/"
"""Path prefix of the test's own requests, which are neither recorded nor subject to faults: POST <verb> with the
arguments as JSON."""

Kind = Literal["error", "html", "hang", "reset", "lose", "kill-before", "kill-after"]


@dataclass(frozen=True)
class Fault:
    """Failure injected instead of, or after, a call.

    error        an error response in the cloud's format: `code`, `status`, `message`, `headers`
    html         a web server's error page: `status`
    hang         no response until the stand-in ends
    reset        the connection is dropped; the call has no effect
    lose         the call takes effect, but the connection is dropped before the response
    kill-before  SIGKILL for the calling process; the call has no effect
    kill-after   the call takes effect, then SIGKILL for the calling process
    """

    kind: Kind
    code: str = ""
    status: int = 500
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


HTML, HANG, RESET, LOSE = Fault("html", status=503), Fault("hang"), Fault("reset"), Fault("lose")
KILL_BEFORE, KILL_AFTER = Fault("kill-before"), Fault("kill-after")


def error(code: str, status: int = 400, message: str = "", **headers: str) -> Fault:
    """Return a fault that is an error response in the cloud's format."""
    return Fault("error", code, status, message or f"{code} (stand-in)", headers)


@dataclass
class Call:
    """One recorded call, with the fields that rules and tests use. All values are text."""

    service: str
    region: str
    action: str
    caller: str
    """Access key or other identity of the caller."""
    params: dict[str, str] = field(default_factory=dict)
    """Parameters, flattened as on the wire: `Placement.AvailabilityZone`, `Filter.1.Name`."""
    zone: str = ""
    number: int = 0
    """Sequence number, from 1."""
    at: float = 0.0
    """Epoch time in seconds."""
    status: int | None = None
    """HTTP status of the response; None: no response, or not yet."""
    fault: str = ""
    """Kind of the fault that was injected; "": none."""

    def value(self, name: str) -> str:
        """Return a parameter, or one of the fields `service`, `region`, `zone` and `caller`."""
        if name in ("service", "region", "zone", "caller"):
            return str(getattr(self, name))
        return self.params.get(name, "")


@dataclass
class Rule:
    """Condition under which a fault is injected. `action` and the values of `where` are globs; `a|b` matches either,
    and a leading `!` negates the whole pattern.

    It skips the first `skip` matching calls, then applies to `times` calls. Calls with a number below `since` never
    match.
    """

    action: str
    fault: Fault
    where: Mapping[str, str] = field(default_factory=dict)
    times: int | None = 1
    """Number of calls to which the fault applies; None: no limit."""
    skip: int = 0
    since: int = 0
    met: int = 0

    def hits(self, call: Call) -> bool:
        if call.number < self.since or not _fits(call.action, self.action):
            return False
        if not all(_fits(call.value(k), v) for k, v in self.where.items()):
            return False
        self.met += 1
        return self.met > self.skip and (self.times is None or self.met <= self.skip + self.times)


def _fits(value: str, glob: str) -> bool:
    globs = glob.removeprefix("!").split("|")
    return any(fnmatchcase(value, one) for one in globs) is not glob.startswith("!")


class Ledger:
    """Thread-safe store of the rules and of the recorded calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: list[Call] = []

    def add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def open(self, call: Call) -> Fault | None:
        """Record the call; return the fault of the first rule that matches."""
        with self._lock:
            call.number, call.at = len(self._calls) + 1, time.time()
            self._calls.append(call)
            rule = next((rule for rule in self._rules if rule.hits(call)), None)
            call.fault = rule.fault.kind if rule else ""
            return rule.fault if rule else None

    def close(self, call: Call, status: int) -> None:
        call.status = status or None

    def calls(self) -> list[dict[str, Any]]:
        with self._lock:
            return [dataclasses.asdict(call) for call in self._calls]

    def clear(self, *, rules: bool = True, calls: bool = True) -> None:
        with self._lock:
            if rules:
                self._rules.clear()
            if calls:
                self._calls.clear()


def kill_peer(port: int) -> int:
    """Send SIGKILL to the process whose connection to this one has this local port; return its id, or 0 if it has
    ended."""
    for connection in psutil.net_connections("tcp"):
        # The peer's local port is the remote port on this process's end of the connection, which is skipped.
        if connection.laddr and connection.laddr.port == port and connection.pid not in (None, os.getpid()):
            pid = int(connection.pid or 0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return pid
    return 0


class Control:
    """Client of a stand-in's control interface."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fail(
        self,
        action: str,
        fault: Fault = LOSE,
        *,
        where: Mapping[str, str] | None = None,
        times: int | None = 1,
        skip: int = 0,
        since: int = 0,
    ) -> None:
        """Add a rule for later calls; the first rule that matches wins. See Rule."""
        result = {
            "fault": dataclasses.asdict(fault),
            "where": where or {},
            "times": times,
            "skip": skip,
            "since": since,
        }
        self.do("fail", action=action, **result)

    def log_out(self, refusals: Mapping[str, Fault], since: int, *, once: str = "") -> None:
        """Refuse the credentials from call number `since` on, until heal(). `refusals`: service glob -> fault; the
        first match wins. `once`: refuse only one call, to this service; the next token is accepted."""
        for service, fault in refusals.items():
            if not once:
                self.fail("*", fault, where={"service": service}, times=None, since=since)
            elif _fits(once, service):
                self.fail("*", fault, where={"service": once}, since=since)
                return

    def heal(self) -> None:
        """Remove all rules."""
        self.do("heal")

    def calls(self, action: str = "*", **where: str) -> list[Call]:
        """Return the recorded calls that match; `where` as in a rule."""
        known = [Call(**call) for call in self.do("calls")]
        return [c for c in known if _fits(c.action, action) and all(_fits(c.value(k), v) for k, v in where.items())]

    def forget(self) -> None:
        """Clear the recorded calls."""
        self.do("forget")

    def reset(self) -> None:
        """Restore the initial state: no resources, no rules."""
        self.do("reset")

    def do(self, verb: str, **arguments: Any) -> Any:
        """Call any control verb of the stand-in."""
        request = urllib.request.Request(
            f"{self.url}{CONTROL}{verb}", json.dumps(arguments).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=180) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"the stand-in refused {verb}: {refused.read().decode()}") from refused
