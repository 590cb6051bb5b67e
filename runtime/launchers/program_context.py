"""What every launcher needs: where a program runs, its command line and its environment
(docs/reference/launchers.md)."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...protocol.jobdir import Address, JobRecord, NodeRecord
from ...storage.urls import local_folder
from ..processes.program import MARKER, Process

_PORTS = range(20_000, 30_000)  # below those which the kernel hands out by itself, so that nobody takes one meanwhile
_MOST_TURNS = 100  # more nodes than that are not on one machine

LOOPBACK = "127.0.0.1"


class LauncherError(Exception):
    """This agent cannot start the program so; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs: everything its environment is made of, besides the machine's own."""

    job: JobRecord
    job_dir: str
    attempt: int
    node: NodeRecord
    nodes: Sequence[NodeRecord]
    """Of the attempt, in rank order."""
    state: Path
    """Folder of the files by which agent and program talk."""
    market: str = ""
    """In which the machines were got, e.g. `spot`; "" if nobody has said so."""
    offer: Mapping[str, Any] = field(default_factory=dict)
    """What the attempt was begun on, as in attempt.json; empty if nobody has said so."""
    writer: str | None = None
    """Socket of the node's checkpoint writer, if the agent runs one."""
    generation: int = 1
    """One more for each restart in place."""
    failures: int = 0
    """How many of the restarts in place, by now, answered a failure of the program."""
    max_failures: int = 0
    """How many may be answered so."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Interruptions before this start: checkpoint.interval.History as JSON."""

    @property
    def notice(self) -> Path:
        return self.state / "notice.json"

    @property
    def listening(self) -> Path:
        return self.state / "listening"

    @property
    def progress(self) -> Path:
        return self.state / "progress.json"


Addresses = Mapping[str, Address]
"""By node name, e.g. `worker-0.1`: the own one and those that needs_addresses() names."""


def command_line(command: str | Sequence[str], args: Sequence[str] = ()) -> list[str]:
    """Return the command to execute. A string is shell text, in which a pipeline fails if any of its commands does.

    Arguments reach the text as arguments, never as text: after its last word, or where it says "$@".
    """
    if not isinstance(command, str):
        return [*command, *args]
    if args and "$@" not in command:
        command = f'{command.rstrip()} "$@"'
    shell = ["bash", "-o", "pipefail"] if shutil.which("bash") else ["sh"]
    return [*shell, "-c", command, "cloudgpu", *args]


def machine_environment(environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """What programs inherit: the agent's environment without cloudgpu's own settings, which may hold secrets."""
    inherited = {name: value for name, value in environ.items() if not name.startswith("CLOUDGPU_")}
    # Python keeps back what it prints to a pipe: a log that is minutes late helps nobody.
    return {"PYTHONUNBUFFERED": "1", **inherited, MARKER: marker}


def environment(place: Place, machine_env: Mapping[str, str]) -> dict[str, str]:
    """The machine's variables, then the user's, then ours, which a program must be able to rely on.

    A job on the submitter's own machine has those of its submit in place of the machine's.
    """
    if place.job.submitter_env is not None:
        machine_env = {**place.job.submitter_env, **_machines_own(place, machine_env)}
    path = {} if place.job.search_path is None else {"PATH": place.job.search_path}
    whole = {**machine_env, **path, **place.job.env, **_job_env(place)}
    own, machines = place.job.env.get("PYTHONPATH"), machine_env.get("PYTHONPATH")
    if own and machines:  # by the machine's, cloudgpu.runtime is found
        whole["PYTHONPATH"] = f"{own}{os.pathsep}{machines}"
    return whole


def _machines_own(place: Place, machine_env: Mapping[str, str]) -> dict[str, str]:
    """Return what the machine sets, and, for a job dir in a bucket, the variables by which it is reached.

    Those may be secret, so they are not stored with the job.
    """
    needed = _STORE_PREFIXES if local_folder(place.job_dir) is None else ()
    return {name: value for name, value in machine_env.items() if name in _MACHINES_OWN or name.startswith(needed)}


_MACHINES_OWN = frozenset({MARKER, "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"})
_STORE_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST")


def _job_env(place: Place) -> dict[str, str]:
    job = place.job
    always = {
        "CLOUDGPU_JOB_ID": job.job_id,
        "CLOUDGPU_JOB_DIR": place.job_dir,
        "CLOUDGPU_ATTEMPT": str(place.attempt),
        "CLOUDGPU_GENERATION": str(place.generation),
        "CLOUDGPU_NODE": place.node.node,
        "CLOUDGPU_NODES": str(len(place.nodes)),
        "CLOUDGPU_ROLE": place.node.role,
        "CLOUDGPU_NOTICE": str(place.notice),
        "CLOUDGPU_LISTENING": str(place.listening),
        "CLOUDGPU_PROGRESS": str(place.progress),
        "CLOUDGPU_CHECKPOINT_EVERY": str(job.checkpoint_every),
        "CLOUDGPU_CHECKPOINT_KEEP": str(job.checkpoint_keep),
        "CLOUDGPU_CHECKPOINT_ON_DAMAGE": job.checkpoint_on_damage,
    }
    known = {
        "CLOUDGPU_MARKET": place.market,
        "CLOUDGPU_WRITER": place.writer,
        "CLOUDGPU_INTERRUPTIONS": json.dumps(place.earlier) if place.earlier else "",
    }
    return {**always, **{name: value for name, value in known.items() if value}}


def setup_process(place: Place, machine_env: Mapping[str, str]) -> Process | None:
    """The job's setup; it is told of the job, but of no rank."""
    if place.job.setup is None:
        return None
    return Process(None, command_line(place.job.setup), environment(place, machine_env))


def program_process(
    place: Place, machine_env: Mapping[str, str], rank: int, world: int, more: Mapping[str, str]
) -> Process:
    """The user's program as one rank of `world`, with a launcher's own variables on top."""
    env = {
        **environment(place, machine_env),
        "CLOUDGPU_RANK": str(rank),
        "CLOUDGPU_WORLD_SIZE": str(world),
        **more,
    }
    return Process(rank, command_line(place.job.run, place.job.args), env)


def free_port(rank: int = 0, nodes: int = 1) -> int:
    """A TCP port nobody listens on at the moment.

    No two ranks of a job choose the same one: on the target local they share a machine, and choose at the same time.
    """
    turns = min(nodes, _MOST_TURNS)
    ports = _PORTS[rank % turns :: turns]
    start = int.from_bytes(os.urandom(2))
    for offset in range(len(ports)):
        port = ports[(start + offset) % len(ports)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise LauncherError(f"no free port from {_PORTS[0]} to {_PORTS[-1]}")


def own_host() -> str:
    """The address this machine has towards others; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: routed as any other, owned by nobody
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
