"""One object per target: its row and its folder hold all facts about it, and no other code names it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu import provisioners
from cloudgpu.jobspecs import targets
from cloudgpu.jobspecs.catalog.csv_tables import shipped_text
from cloudgpu.jobspecs.targets import TargetInfo, built_in
from cloudgpu.provisioners.stacks.fleet_queries import FleetQueries
from cloudgpu.provisioners.tagged_resources import Collector
from cloudgpu.provisioners.target import Target, code_of, target_of

ROOT = Path(__file__).parents[2]
NAMES = frozenset(built_in())
HOMES = (
    *(f"{folder}/{name}/" for folder in ("provisioners", "infra") for name in NAMES),
    *(f"runtime/{folder}/{name}.py" for folder in ("notices", "secrets") for name in NAMES),
    "jobspecs/dialects/",
    "jobspecs/targets.py",  # the static index
)
ELSEWHERE = {
    # Other meanings of the words: a command, a key of JSON, a column.
    "cli/main.py": {"cluster"},
    "cli/cluster/command.py": {"cluster"},
    "cli/cluster/settings.py": {"cluster"},
    "cli/cluster/view.py": {"cluster"},
    "infra/components.py": {"cluster"},
    "provisioners/boot/shipped/host_container.py": {"cluster"},
    "provisioners/stacks/clusters.py": {"cluster"},
    "runtime/checkpoint/writer/client.py": {"local"},
    "runtime/checkpoint/writer/server.py": {"local"},
    # An example of the job file's reference.
    "jobspecs/models.py": {"aws", "gcp"},
    # To be moved: an attempt's records show only by the target's name whether a machine is the submitter's own.
    "runtime/agent/agent.py": {"local"},
    "runtime/launchers/tensorflow.py": {"cluster", "local"},  # `cluster` is a key of TF_CONFIG
    # The agent's static indexes of metadata services and of secret managers.
    "runtime/notices/policy.py": {"aws", "gcp", "azure"},
    "runtime/secrets/references.py": {"aws", "gcp", "azure"},
}
"""File -> target names that may be literals in it. The list must only shrink."""


def products() -> Iterator[str]:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if name.partition("/")[0] not in {"tests", "docs", "examples"} and (ROOT / name).exists():
            yield name


def named_in(path: Path) -> set[str]:
    """Return the targets' names that are literals in a file."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES
    }


def test_a_target_is_named_at_home_only() -> None:
    found = {name: named for name in products() if not name.startswith(HOMES) and (named := named_in(ROOT / name))}
    assert found == ELSEWHERE


def test_the_index_is_that_of_the_table() -> None:
    rows = built_in()
    assert (*targets.CLOUDS, targets.CLUSTER) == tuple(rows)
    assert tuple(name for name, one in rows.items() if one.has_tables) == targets.WITH_TABLES
    assert tuple(name for name, one in rows.items() if one.groups) == targets.FLEET_CLOUDS
    assert [name for name, one in rows.items() if one.outlives_jobs] == [targets.CLUSTER]
    assert {one.machines for one in rows.values()} == {"here", "tables", "standing"}
    assert targets.on_host("gcp") == ("gcp", "vertex")


def test_every_column_of_the_table_is_a_field() -> None:
    columns = set(shipped_text("targets").splitlines()[0].split(",")) - {"target"}
    assert columns == set(TargetInfo._fields) - {"name", "code", "planner"}


@pytest.mark.parametrize("name", built_in())
def test_every_reference_of_a_target_leads_somewhere(name: str) -> None:
    target = target_of(name)
    assert isinstance(target, Target)
    for reference in (target.provisioner, target.set_up, target.architecture):
        assert not reference or callable(code_of(name, reference)), reference
    for module, protocol in ((target.collector, Collector), (target.fleets, FleetQueries)):
        verbs = {verb for verb in vars(protocol) if not verb.startswith("_")}
        assert not module or all(callable(getattr(code_of(name, module), verb)) for verb in verbs), module
    assert not target.tables or callable(code_of(name, target.tables).refresh)
    assert bool(target.fleets) == (name in targets.FLEET_CLOUDS)
    assert target.boot is None or len(targets.info(name).schemes) == 1


def test_targets_load_no_sdk() -> None:
    """A starting supervisor needs only data of each target."""
    code = (
        "import sys\n"
        "from cloudgpu.control.supervisor_environment import hashes\n"
        "hashes({'AWS_PROFILE': 'mine'}, b'salt')\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'boto3', 'google', 'azure', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() in {"[]", "['google']"}  # an empty package that the environment's start-up files load


def test_entry_points_are_not_read_for_what_is_built_in() -> None:
    code = (
        "import sys\n"
        "from cloudgpu.jobspecs import targets\n"
        "assert targets.is_name('aws') and targets.info('cluster').outlives_jobs and not targets.is_name('cluster')\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "assert not targets.is_name('no-such-target')\n"
        "assert 'importlib.metadata' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], timeout=180, check=True)


def installed(folder: Path, entry: str, module: str) -> dict[str, str]:
    """Install a package with one target; return an environment that finds it."""
    (folder / "lab-1.dist-info").mkdir()
    (folder / "lab-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1\n")
    (folder / "lab-1.dist-info" / "entry_points.txt").write_text(f"[{targets.GROUP}]\n{entry}\n")
    (folder / "lab.py").write_text(module)
    return {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("entry", "module", "why"),
    [
        ("lab = lab:INFO", "raise RuntimeError('no licence')", "no licence"),
        ("lab = lab:INFO", "INFO = 'lab'", "is no TargetInfo of that name"),
        ("lab = lab:OTHER", "INFO = 'lab'", "OTHER"),
    ],
)
def test_a_package_that_cannot_be_used_harms_no_other_target(tmp_path: Path, entry: str, module: str, why: str) -> None:
    code = "from cloudgpu.jobspecs import targets; print(targets.find('lab'), *targets.listed())"
    environ = installed(tmp_path, entry, module)
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", *built_in()]
    assert "the target lab cannot be used" in done.stderr and why in done.stderr


def test_a_package_replaces_no_built_in_target(tmp_path: Path) -> None:
    module = "from cloudgpu.jobspecs.targets import TargetInfo\nINFO = TargetInfo('aws', 'lab:TARGET')"
    code = "from cloudgpu.jobspecs import targets; print(targets.info('aws').code, *targets.names())"
    environ = installed(tmp_path, "aws = lab:INFO", module)
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [built_in()["aws"].code, *targets.CLOUDS]


def test_a_target_that_is_not_installed_any_more_has_a_name_only() -> None:
    gone = targets.info("gone")
    assert gone == TargetInfo("gone")
    assert target_of("gone") is None and not provisioners.can_launch("gone")
    assert not (gone.is_here or gone.has_tables or gone.outlives_jobs or gone.groups)
