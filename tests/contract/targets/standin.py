"""Define what the suite of provisioners needs of a target's stand-in. A subclass is a row of test_provisioners.TARGETS.

A method or an attribute that a subclass leaves as it is here is one that its target cannot do: the clauses that need it
are not run there.
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
PATIENCE_S = 180.0
Refusals = Mapping[ErrorClass, Fault]
_numbers = itertools.count(1)


class Standin:
    """A context manager, for a whole module of tests; reset() before each."""

    target: ClassVar[str]
    region: ClassVar[str]
    zone: ClassVar[str | None] = None
    machine_type: ClassVar[str]
    accelerator: ClassVar[str | None] = "T4"
    job_dir: ClassVar[str]
    runs: ClassVar[str] = "running"
    """Phase of a node once its machine runs; `pending` where the node waits for its agent."""
    taken: ClassVar[str] = ""
    """Part of what is said of a machine that the provider has taken back."""
    revives: ClassVar[bool] = False
    """A launch after its end begins anew; otherwise what was ended stays so."""

    once: ClassVar[bool] = True
    """The provider starts a node's machine once only; otherwise a second one that no listing has shown is ended when it
    is seen."""

    control: Control
    """Its calls and faults."""
    start: ClassVar[str] = ""
    """Action of the call that starts a machine; "": there are no calls."""
    refusals: ClassVar[Refusals] = {}
    """Answers to that call, by the class that each is."""
    calls_of_launch: ClassVar[int] = 0
    """Limit of calls for one launch of one node among several; 0: they are not counted."""
    calls_of_look: ClassVar[int] = 0
    """Calls for a look at all launches of a process; 0: each launch is looked at."""
    zones: ClassVar[tuple[str, ...]] = ()
    """Zones of the region as offers spell them, if a launch without a zone goes on to the next one within itself."""
    endpoint: ClassVar[tuple[str, str]] = ("", "")
    """Variable that names another endpoint, and one that would be sent credentials in the open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ: dict[str, str] = {"CLOUDGPU_HOME": str(folder / "home")}
        self.stack = contextlib.ExitStack()
        self._clock = FastClock()

    @classmethod
    def can(cls, *names: str) -> bool:
        """Return whether the target has what the base class leaves out."""
        return all(getattr(cls, name) != getattr(Standin, name) for name in names)

    def __enter__(self) -> Self:
        """Start it, and fill in `environ`."""
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def reset(self, patch: pytest.MonkeyPatch) -> None:
        """Set the environment; nothing is there, and nothing goes wrong."""
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "CLOUDGPU_GCP_"))]:
            patch.delenv(name)
        for name, value in self.environ.items():
            patch.setenv(name, value)
        if self.start:
            self.control.reset()

    # -- the provisioner, and what it is asked

    def another(self, clock: FastClock | None = None) -> Provisioner:
        """Return a provisioner that has seen nothing yet, as that of another process."""
        raise NotImplementedError

    def of_settings(self) -> Provisioner:
        """Return one that reads its credentials from the environment."""
        return self.another()

    @functools.cached_property
    def watcher(self) -> Provisioner:
        """A provisioner for all tests, which never launches: making its clients takes long."""
        return self.another(self._clock)

    def node(self, name: str, rank: int) -> NodeRequest:
        role, _, rest = name.rpartition("-")
        count = Fraction(1 if self.accelerator else 0)
        index = int(rest.partition(".")[0])
        return NodeRequest(name, role, index, rank, self.machine_type, self.accelerator, count)

    def request(self, *names: str, **changes: Any) -> LaunchRequest:
        """Return a request with a token of its own."""
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
        """Return a launch as the supervisor knows it while it has no answer."""
        known = (self.target, asked.job_id, asked.attempt, asked.token, dict[str, str]())
        return Allocation(*known, region=asked.region, owner=asked.owner.name)

    def pass_look(self) -> None:
        """Let a listing be so old that it is not shared any more."""
        self._clock.sleep(4.0)

    # -- what is there

    def alive(self) -> int:
        """Return how many machines run, or bill."""
        raise NotImplementedError

    def started(self) -> int:
        """Return how many machines were ever started since reset()."""
        raise NotImplementedError

    def left(self) -> object:
        """Return our resources that exist; falsy if there are none."""
        raise NotImplementedError

    def tags(self) -> Mapping[str, Mapping[str, str]]:
        """Return the tags of each of our resources, by its name."""
        raise NotImplementedError

    # -- what is to go wrong

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        """Set how many machines there is capacity for in a zone, or where a request without changes goes."""
        raise NotImplementedError

    def limit_quota(self, nodes: int) -> None:
        """Set the quota of on-demand machines."""
        raise NotImplementedError

    def hide(self) -> None:
        """Let listings not show what is new."""
        raise NotImplementedError

    def show(self) -> None:
        """Let listings show everything."""
        raise NotImplementedError

    def end_slowly(self) -> None:
        """Let machines take a fraction of a second to end."""
        raise NotImplementedError

    def crash(self, machine: str) -> None:
        """End a machine behind the provisioner's back."""
        raise NotImplementedError

    def preempt(self, machine: str) -> None:
        """Let the provider take a Spot machine back."""
        raise NotImplementedError

    def stranger(self, patch: pytest.MonkeyPatch) -> Provisioner:
        """Return a provisioner with credentials of another account."""
        raise NotImplementedError

    def break_credentials(self, patch: pytest.MonkeyPatch) -> None:
        """Let the credentials of the environment be refused."""
        raise NotImplementedError

    def reserve(self, places: int) -> None:
        """Make a reservation of this number of machines."""
        raise NotImplementedError


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait for something that happens in a moment."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def refused(provisioner: Provisioner, asked: LaunchRequest) -> ProvisionError:
    """Return the error of a launch that is refused at once."""
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(asked)
    return caught.value


def look(standin: Standin, allocation: Allocation, *phases: str) -> list[NodeState]:
    """Return the nodes' states once these are their phases; one stands for all."""
    wanted = phases * len(allocation.machines) if len(phases) == 1 else phases
    seen = list[NodeState]()

    def are_there() -> bool:
        standin.pass_look()
        seen[:] = standin.watcher.observe(allocation)
        return tuple(state.phase for state in seen) == wanted

    until(are_there)
    return seen
