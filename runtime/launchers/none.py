"""The launcher `none`: one process per node, without a rendezvous."""

from __future__ import annotations

from collections.abc import Mapping

from ..processes.program import Process
from .program_context import Addresses, ProgramContext, program_process


def processes(place: ProgramContext, machine_env: Mapping[str, str], _addresses: Addresses) -> list[Process]:
    return [program_process(place, machine_env, place.node.rank, len(place.nodes), {})]
