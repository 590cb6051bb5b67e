"""Interface of the stand-ins for the provisioners' contract tests. Each subclass is a row of test_provisioners.TARGETS.

A method or attribute that a subclass does not override is a feature that its target lacks: tests that need it are not
run for this target.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from cloudgpu.provisioners import (
    AgentFile,
    Allocation,
    LaunchRequest,
    NodeRequest,
    NodeState,
    Owner,
    Provisioner,
    ProvisionError,
    launch_token,
)
from cloudgpu.provisioners.base import ErrorClass
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import Control, Fault

OWNER = Owner("cloudgpu-tester")
EXPIRES = 2_000_000_000.0
TIMEOUT_S = 180.0
Refusals = Mapping[ErrorClass, Fault]
_numbers = itertools.count(1)


class Standin:
    """Context manager for a whole module of tests; reset() is called before each test."""

    target: ClassVar[str]
    region: ClassVar[str]
    zone: ClassVar[str | None] = None
    machine_type: ClassVar[str]
    accelerator: ClassVar[str | None] = "T4"
    job_dir: ClassVar[str]
    runs: ClassVar[str] = "running"
    """Phase of a node once its machine runs; `pending` where the node waits for its agent."""
    taken: ClassVar[str] = ""
    """Part of the detail of a node whose machine was preempted."""
    revives: ClassVar[bool] = False
    """True if a launch with the token of a terminated one starts new machines; otherwise it stays terminated."""

    once: ClassVar[bool] = True
    """True if the provider guarantees one machine per node; otherwise a duplicate is ended once a listing shows it."""

    control: Control
    """Control of the stand-in's calls and faults."""
    start: ClassVar[str] = ""
    """Action of the call that starts a machine; "": there are no calls."""
    refusals: ClassVar[Refusals] = {}
    """Error responses to that call, by the error class that each must have."""
    calls_of_launch: ClassVar[int] = 0
    """Maximum number of calls for a launch of one node; 0: not counted."""
    calls_of_look: ClassVar[int] = 0
    """Maximum number of calls to observe all launches of a process; 0: each launch is observed separately."""
    zones: ClassVar[tuple[str, ...]] = ()
    """Zones of the region, as in offers, if a launch without a zone tries one after the other."""
    reads: ClassVar[str] = ""
    """Glob of the actions that read, with which `cloudgpu check` must manage; "": there are no calls."""
    endpoint: ClassVar[tuple[str, str]] = ("", "")
    """Variable that overrides the endpoint, and a value without encryption."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ: dict[str, str] = {"CLOUDGPU_HOME": str(folder / "home")}
        self.stack = contextlib.ExitStack()
        self._clock = FastClock()

    @classmethod
    def overrides(cls, *names: str) -> bool:
        """Return whether the subclass overrides all of these members."""
        return all(getattr(cls, name) != getattr(Standin, name) for name in names)

    def __enter__(self) -> Self:
        """Start the stand-in and fill in `environ`."""
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def reset(self, patch: pytest.MonkeyPatch) -> None:
        """Set the environment, and remove all resources and faults."""
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "CLOUDGPU_GCP_"))]:
            patch.delenv(name)
        for name, value in self.environ.items():
            patch.setenv(name, value)
        if self.start:
            self.control.reset()

    # -- provisioners and requests

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        """Return a new provisioner without any cached state, like that of another process."""
        raise NotImplementedError

    def of_settings(self) -> Provisioner:
        """Return a provisioner that reads its credentials from the environment."""
        return self.new_provisioner()

    @functools.cached_property
    def watcher(self) -> Provisioner:
        """Provisioner shared by all tests, as its clients are slow to create; never launches."""
        return self.new_provisioner(self._clock)

    def node(self, name: str, rank: int) -> NodeRequest:
        role, _, rest = name.rpartition("-")
        count = Fraction(1 if self.accelerator else 0)
        index = int(rest.partition(".")[0])
        return NodeRequest(name, role, index, rank, self.machine_type, self.accelerator, count)

    def request(self, *names: str, **changes: Any) -> LaunchRequest:
        """Return a request with a new token. names: of the nodes; changes: fields that differ from the defaults."""
        names = names or ("worker-0.1",)
        job_id = f"digits-{next(_numbers)}"
        values: dict[str, Any] = {
            "job_id": job_id,
            "attempt": 1,
            "token": launch_token(f"{job_id}-{os.getpid()}-{time.monotonic_ns()}", 1, self.region, self.zone),
            "owner": OWNER,
            "job_dir": f"{self.job_dir}/{job_id}",
            "job_sha256": "0" * 64,
            "region": self.region,
            "zone": self.zone,
            "market": "on-demand",
            "disk_gb": 100.0,
            "nodes": tuple(self.node(name, rank) for rank, name in enumerate(names)),
            "lifetime_s": 3_600,
            "expires": EXPIRES,
            "agent": AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
        }
        return LaunchRequest(**{**values, **changes})

    def unanswered(self, asked: LaunchRequest) -> Allocation:
        """Return the allocation that the supervisor has for a launch without an answer."""
        known = (self.target, asked.job_id, asked.attempt, asked.token, dict[str, str]())
        return Allocation(*known, region=asked.region, owner=asked.owner.name)

    def expire_polls(self) -> None:
        """Advance the watcher's clock beyond the TTL of cached polls."""
        self._clock.sleep(4.0)

    # -- resources

    def alive(self) -> int:
        """Return the number of machines that run or are billed."""
        raise NotImplementedError

    def started(self) -> int:
        """Return the number of machines started since reset()."""
        raise NotImplementedError

    def left(self) -> object:
        """Return cloudgpu's existing resources; falsy if there are none."""
        raise NotImplementedError

    def tags(self) -> Mapping[str, Mapping[str, str]]:
        """Return the tags of each of cloudgpu's resources, by its name."""
        raise NotImplementedError

    # -- faults and limits

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        """Set the capacity of a zone, or of the one that request() names by default, in machines."""
        raise NotImplementedError

    def limit_quota(self, nodes: int) -> None:
        """Set the quotas to a number of machines."""
        raise NotImplementedError

    def delay_listings(self) -> None:
        """Make listings stale: they do not show new resources."""
        raise NotImplementedError

    def show_listings(self) -> None:
        """Make listings consistent again."""
        raise NotImplementedError

    def end_slowly(self) -> None:
        """Make machines take a fraction of a second to end."""
        raise NotImplementedError

    def crash(self, machine: str) -> None:
        """End a machine without the provisioner."""
        raise NotImplementedError

    def preempt(self, machine: str) -> None:
        """Preempt a Spot machine."""
        raise NotImplementedError

    def stranger(self, patch: pytest.MonkeyPatch) -> Provisioner:
        """Return a provisioner with credentials of another account."""
        raise NotImplementedError

    def break_credentials(self, patch: pytest.MonkeyPatch) -> None:
        """Make the credentials in the environment invalid."""
        raise NotImplementedError

    def reserve(self, places: int) -> None:
        """Create a reservation of a number of machines."""
        raise NotImplementedError


def until(condition: Callable[[], object], seconds: float = TIMEOUT_S) -> None:
    """Poll a condition until it holds. Raises AssertionError on timeout."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def refused(provisioner: Provisioner, asked: LaunchRequest) -> ProvisionError:
    """Return the error that a launch raises."""
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(asked)
    return caught.value


def wait_for_phases(standin: Standin, allocation: Allocation, *phases: str) -> list[NodeState]:
    """Wait until the nodes have these phases, and return their states. A single phase applies to all nodes."""
    wanted = phases * len(allocation.machines) if len(phases) == 1 else phases
    seen = list[NodeState]()

    def are_there() -> bool:
        standin.expire_polls()
        seen[:] = standin.watcher.observe(allocation)
        return tuple(state.phase for state in seen) == wanted

    until(are_there)
    return seen
