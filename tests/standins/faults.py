"""What can go wrong with a call to any cloud's stand-in, by which rules, and the record of what was called.

Nothing here knows a cloud. A stand-in makes a `Call` of each request, asks `Ledger.open()` what goes wrong with it,
obeys, and calls `Ledger.close()`. A test reaches the ledger over HTTP, through a `Control` of the same verbs, whether
the stand-in is a thread of its own process or another process.
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
"""Requests to this path are of the test, and neither recorded nor harmed: POST <verb> with the arguments as JSON."""

Kind = Literal["error", "html", "hang", "reset", "lose", "kill-before", "kill-after"]


@dataclass(frozen=True)
class Fault:
    """What happens instead of, or after, the call.

    error        an answer in the cloud's own form: `code`, `status`, `message`, `headers`
    html         a web server's error page: `status`
    hang         no answer, until the stand-in ends
    reset        the connection is dropped; nothing was done
    lose         it is done, and the connection dropped
    kill-before  SIGKILL for the calling process; nothing was done
    kill-after   it is done, and then the same
    """

    kind: Kind
    code: str = ""
    status: int = 500
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


HTML, HANG, RESET, LOSE = Fault("html", status=503), Fault("hang"), Fault("reset"), Fault("lose")
KILL_BEFORE, KILL_AFTER = Fault("kill-before"), Fault("kill-after")


def error(code: str, status: int = 400, message: str = "", **headers: str) -> Fault:
    """The cloud's own error."""
    return Fault("error", code, status, message or f"{code} (stand-in)", headers)


@dataclass
class Call:
    """One call, as far as rules and tests ask. All values are text."""

    service: str
    region: str
    action: str
    caller: str
    """The access key, or whatever the cloud knows the caller by."""
    params: dict[str, str] = field(default_factory=dict)
    """Flat, as on the wire: `Placement.AvailabilityZone`, `Filter.1.Name`."""
    zone: str = ""
    number: int = 0
    """From 1, in the order in which they came."""
    at: float = 0.0
    """Epoch seconds."""
    status: int | None = None
    """Of the answer; None: none was given, or not yet."""
    fault: str = ""
    """The kind of what a rule did to it."""

    def value(self, name: str) -> str:
        """Of a parameter, or of one of the fields `service`, `region`, `zone`, `caller`."""
        if name in ("service", "region", "zone", "caller"):
            return str(getattr(self, name))
        return self.params.get(name, "")


@dataclass
class Rule:
    """`action` and the values of `where` are globs; `a|b` is either, a leading `!` negates all.

    Skips `skip` calls that fit, then hits `times`; none before the call whose number is `since`.
    """

    action: str
    fault: Fault
    where: Mapping[str, str] = field(default_factory=dict)
    times: int | None = 1
    """None: always."""
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
    """The rules and the record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._calls: list[Call] = []

    def add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def open(self, call: Call) -> Fault | None:
        """Record it; what the first rule that hits does to it."""
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
    """SIGKILL for the process that holds this local port of a connection to us; its id, or 0 if it is gone."""
    for connection in psutil.net_connections("tcp"):
        # Ours is the other end: there the port is the remote one.
        if connection.laddr and connection.laddr.port == port and connection.pid not in (None, os.getpid()):
            pid = int(connection.pid or 0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return pid
    return 0


class Control:
    """A test's hold on a stand-in, by its URL."""

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
        """A rule for calls to come; the first one that hits wins. See Rule."""
        told = {"fault": dataclasses.asdict(fault), "where": where or {}, "times": times, "skip": skip, "since": since}
        self.do("fail", action=action, **told)

    def log_out(self, refusals: Mapping[str, Fault], since: int, *, once: str = "") -> None:
        """Refuse the credentials from the call of this number on, until heal(). `refusals`: by service, a glob; the
        first that fits says how. `once`: only one call of this service; the next token is good."""
        for service, fault in refusals.items():
            if not once:
                self.fail("*", fault, where={"service": service}, times=None, since=since)
            elif _fits(once, service):
                self.fail("*", fault, where={"service": once}, since=since)
                return

    def heal(self) -> None:
        """No rule any more."""
        self.do("heal")

    def calls(self, action: str = "*", **where: str) -> list[Call]:
        """What was called so far; `where` as in a rule."""
        known = [Call(**call) for call in self.do("calls")]
        return [c for c in known if _fits(c.action, action) and all(_fits(c.value(k), v) for k, v in where.items())]

    def forget(self) -> None:
        """The record begins anew."""
        self.do("forget")

    def reset(self) -> None:
        """As at the start: nothing is there, nothing goes wrong."""
        self.do("reset")

    def do(self, verb: str, **arguments: Any) -> Any:
        """Any verb of the stand-in's own."""
        request = urllib.request.Request(
            f"{self.url}{CONTROL}{verb}", json.dumps(arguments).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=180) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"the stand-in refused {verb}: {refused.read().decode()}") from refused
