"""Train a program of a framework to its end, undisturbed and interrupted, each run in processes of its own.

    python -m cloudgpu.tests.standins.interrupted PROGRAM FOLDER RUNS

PROGRAM defines train(folder, every, batch_done, changed) -> bytes: the final state. It calls batch_done() after every
batch; `changed` says what is to be otherwise than before: "model", "data", "longer" or nothing. RUNS is a JSON list of
the fields of Run. Prints one JSON object per run: {"run", "output", "ranks": [{"code", "batches", "digest"}]}.

Frameworks take seconds to import: they are imported once, here, and every run is a fork of that. A fork has none of its
parent's threads, and waits forever for what one of them was to do: so it is an error if importing has started any.
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
"""Seconds after which a run is ended as hung, with a dump of where it was."""

Train = Callable[..., bytes]


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    folder: str = "disturbed"
    every: int = 1000
    """Batches from save to save."""
    how: str = ""
    """What happens to the last rank: "kill", "term" or "notice"; nothing."""
    after: int = 0
    """...when it has done so many batches."""
    changed: str = ""
    world: int = 1
    """Processes, joined by torch.distributed if there are several."""


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
        if code not in {0, 75}:  # as a launcher does: the others may wait for this one
            for other in children:
                os.kill(other, signal.SIGKILL)
    output = "".join(output_of(run, rank, folder).read_text() for rank in range(run.world))
    return {"run": run.name, "output": output, "ranks": ranks}


def fork(run: Run, rank: int, port: int, train: Train, folder: Path) -> int:
    if child := os.fork():
        return child
    # From here on it is the run's process, which must not go on as its parent.
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
    """What a program calls after each batch; does to its process what the run asks for."""

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
