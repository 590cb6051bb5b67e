"""Benchmark of `cloudgpu infra preview`: processor time of its own process. Engine, provider and cloud are doubles.

The doubles' time is not counted, as it differs from that of the real ones. Most of the process's time is spent in
Pulumi's SDK, whose packages import all of their hundreds of modules on first use. The result is therefore compared with
the imports of the program alone, in the same run.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .measure import Row

_PRINT_CPU_TIME = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""
_COMMAND = """
import sys
from cloudgpu.cli import main
code = main(["infra", "preview", "--cloud", "{cloud}", "--region", "{region}", "--json"])
"""
_IMPORTS = """
import sys
import pulumi.automation
import cloudgpu.infra.{cloud}.programs
code = 0
"""
_REGIONS = {"aws": "us-east-1", "gcp": "us-central1", "azure": "eastus"}
_BUDGET_S, _BUDGET = 2.0, 2.5
"""Budgets: processor seconds on AWS, and for all clouds the ratio to the imports alone."""


def rows(rounds: int = 9) -> list[Row]:
    found = []
    for cloud, region in _REGIONS.items():
        with tempfile.TemporaryDirectory() as folder, _CLOUDS[cloud](Path(folder)) as environ:
            command = _COMMAND.format(cloud=cloud, region=region)
            took = _medians({"preview": command, "imports": _IMPORTS.format(cloud=cloud)}, environ, rounds)
        what = f"`cloudgpu infra preview --cloud {cloud}`"
        how = f"median of {rounds}; processor time of its own process, beside doubles of engine, provider and cloud"
        found.append(Row(what, took["preview"], _BUDGET_S if cloud == "aws" else None, "s", how))
        beside = f"{how}; to importing its program, and with it the SDK, alone: {took['imports']:.2f} s"
        found.append(Row(what, took["preview"] / took["imports"], _BUDGET, "× imports", beside))
    return found


def _medians(scripts: Mapping[str, str], environ: Mapping[str, str], rounds: int) -> dict[str, float]:
    """Return the median time of each script, run in turns after a first round that warms byte code and page cache."""
    times: dict[str, list[float]] = {name: [] for name in scripts}
    for number in range(rounds + 1):
        for name, script in scripts.items():
            used = _own_s(script, environ)
            if number:
                times[name].append(used)
    return {name: statistics.median(values) for name, values in times.items()}


def _own_s(script: str, environ: Mapping[str, str]) -> float:
    command = [sys.executable, "-c", script + _PRINT_CPU_TIME]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stderr.splitlines()[-1])


# --- clouds -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _aws(_folder: Path) -> Iterator[dict[str, str]]:
    from cloudgpu.tests.standins.aws import Aws

    with Aws() as aws:
        yield aws.environ


@contextlib.contextmanager
def _gcp(folder: Path) -> Iterator[dict[str, str]]:
    from cloudgpu.tests.standins.gcp import Gcp

    with Gcp() as gcp:
        yield gcp.environ(folder / "keys")


@contextlib.contextmanager
def _azure(folder: Path) -> Iterator[dict[str, str]]:
    from cloudgpu.tests.standins.azure import Azure

    with Azure() as azure:
        yield azure.environ(folder / "keys")


def _with_engine(
    cloud: str, started: Callable[[Path], contextlib.AbstractContextManager[dict[str, str]]]
) -> Callable[[Path], contextlib.AbstractContextManager[dict[str, str]]]:
    """Wrap a cloud's stand-in so that the doubles of engine and provider run with it."""

    @contextlib.contextmanager
    def run(folder: Path) -> Iterator[dict[str, str]]:
        from cloudgpu.tests.standins.pulumi import double
        from cloudgpu.tests.standins.pulumi.serving import attached, load

        before = dict(os.environ)
        with started(folder) as environ:
            os.environ.update(environ)  # for the provider, which runs in this process
            try:
                bin_folder = double.install(folder / "bin").parent
                with attached(load("azure-native" if cloud == "azure" else cloud)) as attached_to:
                    path = os.pathsep.join((str(bin_folder), os.environ["PATH"]))
                    yield {**os.environ, **attached_to, "CLOUDGPU_HOME": f"{folder}/home", "PATH": path}
            finally:
                os.environ.clear()
                os.environ.update(before)

    return run


_CLOUDS = {cloud: _with_engine(cloud, one) for cloud, one in {"aws": _aws, "gcp": _gcp, "azure": _azure}.items()}
