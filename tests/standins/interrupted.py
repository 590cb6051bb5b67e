"""Training of a framework's program to its end, undisturbed and interrupted, with separate processes for each run.

    python -m cloudgpu.tests.standins.interrupted PROGRAM FOLDER RUNS

PROGRAM defines train(folder, every, batch_done, changed) -> bytes: the final state. It calls batch_done() after every
batch; `changed` names what differs from the previous run: "model", "data", "longer" or nothing. RUNS is a JSON list of
the fields of Run. Prints one JSON object per run: {"run", "output", "ranks": [{"code", "batches", "digest"}]}.

Frameworks take seconds to import, so they are imported once, and every run is a fork of this process. A fork has none
of its parent's threads and would wait forever for their work, so threads that were started by an import are an error.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu.runtime.launchers import free_port

LIMIT = 150.0
"""Seconds after which a hung run is ended, with a traceback of each thread."""

Train = Callable[..., bytes]


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    folder: str = "disturbed"
    every: int = 1000
    """Batches between two saves."""
    how: str = ""
    """Event that hits the last rank: "kill", "term" or "notice"; "": none."""
    after: int = 0
    """Number of batches after which the event happens."""
    changed: str = ""
    world: int = 1
    """Number of processes, joined by torch.distributed if there are several."""


def main() -> None:
    program, folder, runs = sys.argv[1:]
    train: Train = runpy.run_path(program)["train"]
    for fields in json.loads(runs):
        sys.stdout.flush()
        print(json.dumps(carry_out(Run(**fields), train, Path(folder))), flush=True)


def carry_out(run: Run, train: Train, folder: Path) -> dict[str, Any]:
    if len(threads := thread_names()) > 1:
        sys.exit(f"{run.name}: the program has started threads before train(), so a fork may hang: {threads}")
    port = free_port()
    children = {fork(run, rank, port, train, folder): rank for rank in range(run.world)}
    ranks: list[Any] = [None] * run.world
    for _ in range(run.world):
        child, status = os.wait()
        rank, code = children.pop(child), os.waitstatus_to_exitcode(status)
        record = record_of(run, rank, folder)
        ranks[rank] = {"code": code, **(json.loads(record.read_text()) if record.exists() else {})}
        if code not in {0, 75}:  # a launcher also kills the others, which may wait for the failed rank
            for other in children:
                os.kill(other, signal.SIGKILL)
    output = "".join(output_of(run, rank, folder).read_text() for rank in range(run.world))
    return {"run": run.name, "output": output, "ranks": ranks}


def fork(run: Run, rank: int, port: int, train: Train, folder: Path) -> int:
    if child := os.fork():
        return child
    # Only the forked process gets here; it must end with os._exit() and never run its parent's code.
    try:
        redirect(output_of(run, rank, folder))
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        os.environ["CLOUDGPU_NOTICE"] = str(folder / f"{run.name}.notice")
        if run.world > 1:
            os.environ.update(as_torchrun_does(rank, run.world, port))
        counter = Counter(run if rank == run.world - 1 else Run(run.name))
        code = code_of(
            lambda: train(str(folder / run.folder), run.every, counter, run.changed),
            counter,
            record_of(run, rank, folder),
        )
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Counter:
    """Batch counter that programs call after each batch; triggers the event of the run."""

    def __init__(self, run: Run) -> None:
        self.batches, self._run = 0, run

    def __call__(self) -> None:
        self.batches += 1
        if self.batches != self._run.after:
            return
        if self._run.how == "notice":
            words = {"reason": "preempted", "deadline": None, "action": "stop", "id": "1"}
            notice = Path(os.environ["CLOUDGPU_NOTICE"])
            notice.with_suffix(".new").write_text(json.dumps(words))
            notice.with_suffix(".new").rename(notice)
        else:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM}[self._run.how])


def code_of(train: Callable[[], bytes], counter: Counter, record: Path) -> int:
    digest, code = None, 0
    try:
        digest = hashlib.sha256(train()).hexdigest()
    except SystemExit as end:
        code = int(end.code or 0)
    record.write_text(json.dumps({"batches": counter.batches, "digest": digest}))
    return code


def as_torchrun_does(rank: int, world: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
    }


def thread_names() -> list[str]:
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def redirect(output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def record_of(run: Run, rank: int, folder: Path) -> Path:
    return folder / f"{run.name}.{rank}.json"


def output_of(run: Run, rank: int, folder: Path) -> Path:
    return folder / f"{run.name}.{rank}.txt"


if __name__ == "__main__":
    main()
