"""Wait for the other nodes' addresses: its timeout, and the error when they never come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobRecord, NodeRecord
from cloudgpu.provisioners.vertex.provisioner import PENDING_S
from cloudgpu.runtime.agent.generations import Ledger
from cloudgpu.runtime.agent.membership import FLEET_TIMEOUT_S, LeftOutError
from cloudgpu.runtime.agent.node.program import NodeProgram
from cloudgpu.runtime.agent.restart import Budget
from cloudgpu.runtime.launchers import ProgramContext


class Impatient:
    """Runner that polls once and records each timeout."""

    def __init__(self) -> None:
        self.limits: list[float] = []

    def poll(self, call: Callable[[], object], limit_s: float, _every_s: float) -> object:
        self.limits.append(limit_s)
        return call()


@pytest.mark.parametrize(
    ("heals", "of_fleet", "least_s"),
    [(True, False, PENDING_S), (False, False, PENDING_S), pytest.param(True, True, FLEET_TIMEOUT_S, id="of a fleet")],
)
def test_a_node_that_does_not_come_is_waited_for_as_long_as_its_provider_may_take(
    tmp_path: Path, heals: bool, of_fleet: bool, least_s: float
) -> None:
    url = f"file://{tmp_path}"
    nodes = [NodeRecord(f"worker-{rank}.1", "worker", rank, rank, 0) for rank in range(2)]
    place = ProgramContext(JobRecord("job-1", "job", "true"), url, 1, nodes[1], nodes, tmp_path)
    job_dir, runner = JobDir(url), Impatient()
    ledger = Ledger(job_dir, 1, "worker-1.1", Budget(1, None), "group", heals=heals, comes_back=lambda: False)
    node = SimpleNamespace(
        job_dir=job_dir,
        attempt=1,
        name="worker-1.1",
        host="localhost",
        state=tmp_path,
        marker="marker",
        runner=runner,
        retry=lambda call: call(),
        log=SimpleNamespace(add_agent_line=lambda _text: None),
        key=lambda name: f"attempts/0001/nodes/worker-1.1/{name}",
        of_fleet=of_fleet,
    )
    program = NodeProgram(cast("Any", node), place, "torchrun", ledger)
    with pytest.raises(LeftOutError, match=r"no address from worker-0\.1 within"):  # an interruption
        program._exchange_addresses(place)
    assert min(runner.limits) >= least_s
