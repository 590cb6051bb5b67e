"""Ordinary PyTorch programs under `run`, killed at random moments: they end as if undisturbed, or are refused.

The programs are in unmodified/programs. In the long mode all of them run, with two or three kills and two seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cloudgpu.tests.standins.long_mode import LONG

from .unmodified.driver import Driver, forking, programs
from .unmodified.expected import REFUSED, TELLING

SEEDS = int(os.environ.get("CLOUDGPU_UNMODIFIED_SEEDS", "2")) if LONG else 1


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with forking() as made:
        yield made


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("program", programs() if LONG else TELLING)
def test_a_killed_program_delivers_the_same_or_is_refused(driver: Driver, program: str, seed: int) -> None:
    verdict = driver.verdict(program, seed, most_kills=3 if LONG else 1)
    if program in REFUSED:
        assert verdict.outcome == "refused" and REFUSED[program] in verdict.detail, verdict
    else:
        assert verdict.outcome == "identical", verdict


def test_expectations_name_existing_programs() -> None:
    assert {*REFUSED, *TELLING} <= set(programs())
