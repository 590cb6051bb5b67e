"""From a job and a node to the processes to start: one table of launchers, one table of variables (docs/runtime.md)."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .jobdir import Address, JobRecord, NodeRecord
from .program import MARKER, Process

_PORTS = range(20_000, 30_000)  # below those which the kernel hands out by itself, so that nobody takes one meanwhile


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

    @property
    def notice(self) -> Path:
        return self.state / "notice.json"

    @property
    def listening(self) -> Path:
        return self.state / "listening"

    @property
    def progress(self) -> Path:
        return self.state / "progress.json"


def launcher_name(job: JobRecord, nodes: Sequence[NodeRecord]) -> str:
    """The launcher to use: `auto` is torchrun as soon as there is more than one process. Raises LauncherError."""
    name = job.launcher
    if name == "auto":
        name = "torchrun" if len(nodes) > 1 or any(node.gpus > 1 for node in nodes) else "none"
    if name not in _LAUNCHERS:
        raise LauncherError(f"this version cannot launch with {name}, only with: {', '.join(sorted(_LAUNCHERS))}")
    return name


def needs_address(launcher: str, nodes: Sequence[NodeRecord]) -> bool:
    """Whether the nodes must find one another."""
    return launcher == "torchrun" and len(nodes) > 1


def processes(launcher: str, place: Place, machine_env: Mapping[str, str], master: Address) -> list[Process]:
    """The processes of this node. `master` is where rank 0's node can be reached."""
    return _LAUNCHERS[launcher](place, machine_env, master)


def setup_process(place: Place, machine_env: Mapping[str, str]) -> Process | None:
    """The job's setup; it is told of the job, but of no rank."""
    if place.job.setup is None:
        return None
    return Process(None, command_line(place.job.setup), _environment(place, machine_env))


def command_line(command: str | Sequence[str], args: Sequence[str] = ()) -> list[str]:
    """A string is the user's own shell text; arguments reach it as arguments, never as text.

    They follow its last word, unless it says itself where they go ("$@").
    """
    if not isinstance(command, str):
        return [*command, *args]
    if args and "$@" not in command:
        command = f'{command.rstrip()} "$@"'
    return ["bash" if shutil.which("bash") else "sh", "-c", command, "cloudgpu", *args]


def machine_environment(environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """What programs inherit: the agent's environment without cloudgpu's own settings, which may hold secrets."""
    inherited = {name: value for name, value in environ.items() if not name.startswith("CLOUDGPU_")}
    # Python keeps back what it prints to a pipe: a log that is minutes late helps nobody.
    return {"PYTHONUNBUFFERED": "1", **inherited, MARKER: marker}


def free_port() -> int:
    """A TCP port nobody listens on at the moment."""
    start = int.from_bytes(os.urandom(2))
    for offset in range(len(_PORTS)):
        port = _PORTS[(start + offset) % len(_PORTS)]
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


def _environment(place: Place, machine_env: Mapping[str, str]) -> dict[str, str]:
    """The machine's variables, then the user's, then ours, which a program must be able to rely on."""
    path = {} if place.job.search_path is None else {"PATH": place.job.search_path}
    return {**machine_env, **path, **place.job.env, **_job_env(place)}


def _job_env(place: Place) -> dict[str, str]:
    job = place.job
    return {
        "CLOUDGPU_JOB_ID": job.job_id,
        "CLOUDGPU_JOB_DIR": place.job_dir,
        "CLOUDGPU_ATTEMPT": str(place.attempt),
        "CLOUDGPU_NODE": place.node.node,
        "CLOUDGPU_ROLE": place.node.role,
        "CLOUDGPU_NOTICE": str(place.notice),
        "CLOUDGPU_LISTENING": str(place.listening),
        "CLOUDGPU_PROGRESS": str(place.progress),
        "CLOUDGPU_CHECKPOINT_EVERY": str(job.checkpoint_every),
        "CLOUDGPU_CHECKPOINT_KEEP": str(job.checkpoint_keep),
    }


def _process(
    place: Place, machine_env: Mapping[str, str], rank: int, world: int, more: Mapping[str, str] | None = None
) -> Process:
    env = {
        **_environment(place, machine_env),
        "CLOUDGPU_RANK": str(rank),
        "CLOUDGPU_WORLD_SIZE": str(world),
        **(more or {}),
    }
    return Process(rank, command_line(place.job.run, place.job.args), env)


def _none(place: Place, machine_env: Mapping[str, str], _master: Address) -> list[Process]:
    return [_process(place, machine_env, place.node.rank, len(place.nodes))]


def _torchrun(place: Place, machine_env: Mapping[str, str], master: Address) -> list[Process]:
    """One process per GPU, or one on the CPU, with the variables torchrun sets: init_process_group() finds them."""
    sizes = {node.rank: max(1, node.gpus) for node in place.nodes}
    world, local_world = sum(sizes.values()), sizes[place.node.rank]
    first = sum(size for rank, size in sizes.items() if rank < place.node.rank)
    shared = {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "NODE_RANK": str(place.node.rank),
        "GROUP_RANK": str(place.node.rank),
        "GROUP_WORLD_SIZE": str(len(place.nodes)),
        "MASTER_ADDR": master.host,
        "MASTER_PORT": str(master.port),
        "TORCHELASTIC_RUN_ID": f"{place.job.job_id}-{place.attempt}",
    }
    # As torchrun does: each process of several would otherwise start a thread for every core there is.
    quiet = {"OMP_NUM_THREADS": "1"} if local_world > 1 else {}
    return [
        _process(
            place,
            {**quiet, **machine_env},
            first + local,
            world,
            {**shared, "RANK": str(first + local), "LOCAL_RANK": str(local)},
        )
        for local in range(local_world)
    ]


_LAUNCHERS: dict[str, Callable[[Place, Mapping[str, str], Address], list[Process]]] = {
    "none": _none,
    "torchrun": _torchrun,
}
