"""Launchers across machines: one agent in each of several network namespaces, with separate addresses and host names.

Needs root and iproute2, and temporarily changes the machine's network: only with CLOUDGPU_LONG=1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cloudgpu.tests.standins.agents import MARKER, World, world
from cloudgpu.tests.standins.long_mode import LONG

__all__ = ["world"]

pytestmark = pytest.mark.skipif(
    not LONG or os.getuid() != 0 or shutil.which("ip") is None,
    reason="only with CLOUDGPU_LONG=1, as root, where `ip` is (apt-get install iproute2)",
)
NODES = 3
BRIDGE = "cgbridge"

MPI = """
import json, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
neighbours = world.Split_type(MPI.COMM_TYPE_SHARED).Get_size()
print(json.dumps([world.Get_rank(), world.allreduce(world.Get_rank()), socket.gethostname(), neighbours]))
"""

TORCH = """
import json, os, socket
import torch.distributed as dist
import torch
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
print(json.dumps([dist.get_rank(), total.item(), socket.gethostname(), int(os.environ["LOCAL_WORLD_SIZE"])]))
dist.destroy_process_group()
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Create namespaces joined by a bridge, with addresses 10.77.0.1, 10.77.0.2, …, and yield their names."""
    names = [f"cgnode{index}" for index in range(NODES)]
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for index, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"cgveth{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"cgveth{index}", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"10.77.0.{index + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "route", "add", "default", "via", "10.77.0.254")  # by this route a machine finds its address
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False)


@pytest.mark.parametrize(("launcher", "program"), [("mpi", MPI), ("torchrun", TORCH)])
def test_ranks_meet_across_machines(world: World, machines: list[str], launcher: str, program: str) -> None:
    pytest.importorskip({"mpi": "mpi4py", "torchrun": "torch"}[launcher])
    command = [sys.executable, "main.py"]
    env = {"GLOO_SOCKET_IFNAME": "eth0"}  # otherwise gloo resolves the host name, which no server here knows
    world.job(command, code={"main.py": program}, nodes=NODES, gpus=2, launcher=launcher, env=env)
    agents = []
    for index, name in enumerate(machines):
        world.home(index).mkdir(parents=True)
        start = [sys.executable, "-P", "-m", "cloudgpu.runtime.agent", "--job-dir", world.dir.url, "--attempt", "1"]
        start += ["--node", f"worker-{index}.1", "--job-sha256", world.sha256, "--home", str(world.home(index))]
        own_name = ["unshare", "--uts", "sh", "-c", f'hostname machine-{index}; exec "$@"', "sh"]
        marked = {**os.environ, MARKER: f"{world.token}/{index}"}
        agents.append(subprocess.Popen(["ip", "netns", "exec", name, *own_name, *start], env=marked))
    for agent in agents:
        agent.wait(120)
    assert [world.result(index).outcome for index in range(NODES)] == ["succeeded"] * NODES, world.texts("stderr")
    rows = sorted(json.loads(text) for text in world.texts())
    assert rows == [[rank, 15, f"machine-{rank // 2}", 2] for rank in range(2 * NODES)]
