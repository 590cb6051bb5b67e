"""Names of checkpoints: unique, sortable by age, and equal on every rank without communication."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_NAME = re.compile(r"(\d{8,18})-(\d{4,9})-([0-9a-f]{12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Name:
    """Name of a checkpoint's folder, `<step>-<attempt>-<nonce>`; never reused."""

    step: int
    attempt: int
    nonce: str
    """12 hexadecimal digits: the run's save counter (4), as a step may be saved twice, and the run's nonce (8)."""

    @classmethod
    def of_run(cls, step: int, attempt: int, count: int, run: str) -> Name:
        """Return the name of a run's save number `count`. `run`: run_nonce() of the first rank, broadcast once."""
        return cls(step, attempt, f"{count % 0x10000:04x}{run}")

    @classmethod
    def new(cls, step: int, attempt: int, count: int) -> Name:
        """Return a name that has never been used."""
        return cls.of_run(step, attempt, count, run_nonce())

    @classmethod
    def parse(cls, text: str) -> Name | None:
        match = _NAME.fullmatch(text)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None

    def __str__(self) -> str:
        return f"{self.step:08d}-{self.attempt:04d}-{self.nonce}"

    @property
    def age(self) -> tuple[int, int, str]:
        """Sort key from old to new; docs/reference/checkpoint-format.md explains why the attempt comes first."""
        return (self.attempt, self.step, self.nonce)


def run_nonce() -> str:
    """Return 8 random hexadecimal digits, so that two runs never share a name, even within an attempt."""
    return os.urandom(4).hex()
