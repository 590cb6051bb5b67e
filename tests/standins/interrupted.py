"""Train a program of a framework to its end, undisturbed and interrupted, each run in a process of its own.

    python -m cloudgpu.tests.standins.interrupted PROGRAM FOLDER KILL...

PROGRAM defines train(folder, every, batch_done, changed) -> bytes: the final state. It calls batch_done() after every
batch; `changed` asks for a model of another shape. Frameworks take seconds to import: they are imported once, here, and
every run is a fork of that. KILL: after how many batches of a process to kill it, one process each.
Prints one JSON object per run: {"run", "code" (as subprocess has it), "batches", "digest", "output"}.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Train = Callable[..., bytes]


def main() -> None:
    program, folder, *kills = sys.argv[1:]
    train: Train = runpy.run_path(program)["train"]
    plain, disturbed, notice = (Path(folder) / name for name in ("plain", "disturbed", "notice.json"))
    run("undisturbed", train, plain, every=1000)
    for after in kills:
        run("killed", train, disturbed, every=1, after=int(after), then=lambda: os.kill(os.getpid(), signal.SIGKILL))
    run("terminated", train, disturbed, after=2, then=lambda: os.kill(os.getpid(), signal.SIGTERM))
    words = json.dumps({"reason": "preempted", "deadline": None, "action": "stop", "id": "1"})
    run("noticed", train, disturbed, after=3, then=lambda: notice.write_text(words), notice=notice)
    run("changed", train, disturbed, changed=True)
    run("resumed", train, disturbed)
    run("finished", train, disturbed)


def run(
    name: str,
    train: Train,
    folder: Path,
    *,
    every: int = 1000,
    after: int = 0,
    then: Callable[[], Any] = lambda: None,
    changed: bool = False,
    notice: Path | None = None,
) -> None:
    record, output = folder.with_name("record.json"), folder.with_name("output.txt")
    record.unlink(missing_ok=True)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        redirect(output)
        if notice is not None:
            os.environ["CLOUDGPU_NOTICE"] = str(notice)
        counter = Counter(after, then)
        os._exit(code_of(lambda: train(str(folder), every, counter, changed), counter, record))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = json.loads(record.read_text()) if record.exists() else {"batches": None, "digest": None}
    print(json.dumps({"run": name, "code": code, **found, "output": output.read_text()}), flush=True)


class Counter:
    """What a program calls after each batch; does `then` after so many."""

    def __init__(self, after: int, then: Callable[[], Any]) -> None:
        self.batches, self._after, self._then = 0, after, then

    def __call__(self) -> None:
        self.batches += 1
        if self.batches == self._after:
            self._then()


def redirect(output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def code_of(train: Callable[[], bytes], counter: Counter, record: Path) -> int:
    """The exit code of a forked run, which must not go on as its parent."""
    digest, code = None, 0
    try:
        digest = hashlib.sha256(train()).hexdigest()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    record.write_text(json.dumps({"batches": counter.batches, "digest": digest}))
    return code


if __name__ == "__main__":
    main()
