"""The stand-in in a process of its own, ended with the test that started it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..program import started
from .control import GcpControl


@contextlib.contextmanager
def gcp_process(*, boot: bool = True) -> Iterator[GcpControl]:
    """Its control. The stand-in ends when this process does, however that comes."""
    with started("cloudgpu.tests.standins.gcp", boot=boot) as url:
        yield GcpControl(url)
