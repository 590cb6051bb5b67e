"""Two ranks of which one behaves differently; `disagreeing.py FOLDER` forks both.

Each case is a separate training run. Each rank writes the exception and the exit code of each case as one line of
JSON to FOLDER/said-RANK.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist

from cloudgpu.runtime import Checkpointer
from cloudgpu.runtime.launchers import free_port

# "dies" must be last, since it ends the rank's process.
CASES = ("option", "load", "state_dict", "flatten", "wait", "steps", "dies")


class Odd:
    """Object that misbehaves on rank 1: when it is loaded, or from the third call of state_dict() on."""

    def __init__(self, case: str) -> None:
        self._case = case if dist.get_rank() == 1 else ""
        self.saves = 0

    def state_dict(self) -> dict[str, Any]:
        self.saves += 1
        if self.saves >= 3 and self._case == "state_dict":
            raise ArithmeticError("cannot say")
        return {"value": object() if self.saves >= 3 and self._case == "flatten" else 3.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._case == "load":
            raise KeyError("value")


def train(case: str, folder: Path) -> None:
    me = case if dist.get_rank() == 1 else ""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    odd = Odd(case)
    if case == "load":
        ckpt = Checkpointer(model=model, optimizer=optimizer, odd=odd, folder=folder)
        odd._case = ""
        for _ in ckpt.steps(2):
            pass
        ckpt.release()
        odd = Odd(case)
    every = 0 if me == "option" else 2
    ckpt = Checkpointer(model=model, optimizer=optimizer, odd=odd, folder=folder, every=every)
    for step in ckpt.steps(5 if me == "steps" else 20):
        if step == 3 and me == "dies":
            os._exit(9)
        if step < 5 or me == "wait":
            ckpt.wait()


def rank(number: int, ports: list[int], folder: Path) -> None:
    for case, port in zip(CASES, ports, strict=True):
        outcome = folder / f"outcome-{number}"
        outcome.unlink(missing_ok=True)
        os.environ["CLOUDGPU_OUTCOME"] = str(outcome)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
        raised = ""
        try:
            train(case, folder / case)
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            raised = f"{type(error).__name__}: {error}"
        code = json.loads(outcome.read_bytes()).get("code") if outcome.exists() else None
        with (folder / f"said-{number}").open("a") as file:
            file.write(json.dumps([case, raised, code]) + "\n")
        dist.destroy_process_group()


if __name__ == "__main__":
    ports, place = [free_port(number, len(CASES)) for number in range(len(CASES))], Path(sys.argv[1])
    children = []
    for number in range(2):
        if not (child := os.fork()):
            rank(number, ports, place)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
