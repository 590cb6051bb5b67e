"""Context in which launchers start a program: node and attempt, command line, environment.

See docs/reference/launchers.md.
"""

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

_PORTS = range(20_000, 30_000)  # below the kernel's ephemeral ports, so that none is taken meanwhile
_MOST_TURNS = 100  # maximum number of nodes on one machine

LOOPBACK = "127.0.0.1"


class LauncherError(Exception):
    """This agent cannot start the program with the launcher; the message says why."""


@dataclass(frozen=True, slots=True)
class ProgramContext:
    """Context of a program's start: job, attempt and node, from which its environment variables are derived."""

    job: JobRecord
    job_dir: str
    attempt: int
    node: NodeRecord
    nodes: Sequence[NodeRecord]
    """Nodes of the attempt, in rank order."""
    state: Path
    """Folder of the files through which agent and program communicate."""
    market: str = ""
    """Market of the machines, e.g. `spot`; "" if unknown."""
    offer: Mapping[str, Any] = field(default_factory=dict)
    """Offer of the attempt, as in attempt.json; empty if unknown."""
    writer: str | None = None
    """Socket of the node's checkpoint writer, if the agent runs one."""
    generation: int = 1
    """Number of the generation: 1, plus one for each restart in place."""
    failures: int = 0
    """Number of restarts in place so far that followed a failure of the program."""
    max_failures: int = 0
    """Maximum number of such restarts."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Interruptions before this start: checkpoint.schedule.interval.History as JSON."""
    progress_since: int = 0
    """Value of AttemptRecord.progress_since."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of the job's secrets, by variable. They go into the environment of programs only."""

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
"""Addresses by node name, e.g. `worker-0.1`: this node's, and those of the nodes from needs_addresses()."""


def command_line(command: str | Sequence[str], args: Sequence[str] = ()) -> list[str]:
    """Return the command to execute. A string is run by a shell, with `pipefail` if bash is available.

    `args` are passed to the shell as positional parameters, not as text. They are inserted at $@ in the command, or
    added at its end.
    """
    if not isinstance(command, str):
        return [*command, *args]
    if args and "$@" not in command:
        command = f'{command.rstrip()} "$@"'
    shell = ["bash", "-o", "pipefail"] if shutil.which("bash") else ["sh"]
    return [*shell, "-c", command, "cloudgpu", *args]


def machine_environment(environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """Return the variables that programs inherit: the agent's, without CLOUDGPU_* variables, which may be secret."""
    inherited = {name: value for name, value in environ.items() if not name.startswith("CLOUDGPU_")}
    # Python buffers output to a pipe, which would delay the log by minutes.
    return {"PYTHONUNBUFFERED": "1", **inherited, MARKER: marker}


def environment(place: ProgramContext, machine_env: Mapping[str, str]) -> dict[str, str]:
    """Return a program's environment: the machine's variables, overridden by the job's `env` and its secrets, then by
    cloudgpu's.

    On the submitter's machine, the variables of the submitting shell replace the machine's.
    """
    if place.job.submitter_env is not None:
        machine_env = {**place.job.submitter_env, **_machines_own(place, machine_env)}
    path = {} if place.job.search_path is None else {"PATH": place.job.search_path}
    whole = {**machine_env, **path, **place.job.env, **place.secrets, **_job_env(place)}
    own, machines = place.job.env.get("PYTHONPATH"), machine_env.get("PYTHONPATH")
    if own and machines:  # the machine's path is needed to import cloudgpu.runtime
        whole["PYTHONPATH"] = f"{own}{os.pathsep}{machines}"
    return whole


def _machines_own(place: ProgramContext, machine_env: Mapping[str, str]) -> dict[str, str]:
    """Return the machine's variables that are kept in place of the submitting shell's.

    They include the variables for access to a job dir in a bucket, which may be secret and are not stored in the job.
    """
    needed = _STORE_PREFIXES if local_folder(place.job_dir) is None else ()
    return {name: value for name, value in machine_env.items() if name in _MACHINES_OWN or name.startswith(needed)}


_MACHINES_OWN = frozenset({MARKER, "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"})
_STORE_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST")


def _job_env(place: ProgramContext) -> dict[str, str]:
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
        "CLOUDGPU_PROGRESS_SINCE": str(place.progress_since) if place.progress_since else "",
    }
    return {**always, **{name: value for name, value in known.items() if value}}


def setup_process(place: ProgramContext, machine_env: Mapping[str, str]) -> Process | None:
    """Return the process of the job's setup, which has no rank; None if the job has no setup."""
    if place.job.setup is None:
        return None
    return Process(None, command_line(place.job.setup), environment(place, machine_env))


def program_process(
    place: ProgramContext, machine_env: Mapping[str, str], rank: int, world: int, more: Mapping[str, str]
) -> Process:
    """Return the process of the user's program as one of `world` ranks. `more`: the launcher's variables."""
    env = {
        **environment(place, machine_env),
        "CLOUDGPU_RANK": str(rank),
        "CLOUDGPU_WORLD_SIZE": str(world),
        **more,
    }
    return Process(rank, command_line(place.job.run, place.job.args), env)


def free_port(rank: int = 0, nodes: int = 1) -> int:
    """Return a free TCP port. Raises LauncherError if there is none.

    Each node (`rank` of `nodes`) chooses from different ports, because on the target `local` nodes share a machine.
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
    """Return this machine's outgoing address, without sending a packet; its host name if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, reserved for documentation: routed like any other address
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
