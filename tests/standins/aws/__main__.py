"""The stand-in as a separate process: prints its URL, ends at a signal."""

from __future__ import annotations

from ..program import main
from . import Aws
from .control import environ

main(
    "a stand-in for AWS, on the loopback",
    lambda given: Aws(boot=given.boot, port=given.port, certificate=given.certificate),
    environ,
)
