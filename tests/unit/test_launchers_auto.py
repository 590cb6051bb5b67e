"""`launcher: auto`: what a program imports, read without running it, and the launcher that follows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cloudgpu.cli import main
from cloudgpu.runtime.autolaunch import Choice, NodeLayout, choose
from cloudgpu.runtime.program_scan import python_start, scan

FOUR = NodeLayout(["worker"] * 2, [2, 2])
ONE = NodeLayout(["worker"], [1])


def write(folder: Path, **files: str) -> Path:
    """Python files by their names without `.py`."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("import torch", FOUR, Choice("torchrun", "train.py imports torch; there are 4 processes")),
        ("import torch.nn as nn", ONE, Choice("none", "train.py imports torch; there is one process")),
        (
            "from tensorflow import keras",
            FOUR,
            Choice("tensorflow", "train.py imports tensorflow; there are 2 processes"),
        ),
        (
            "import tensorflow",
            NodeLayout(["worker"], [8]),
            Choice("none", "train.py imports tensorflow; there is one process"),
        ),
        (
            "import torch, horovod.torch as hvd",
            FOUR,
            Choice("horovod", "train.py imports horovod; there are 4 processes"),
        ),
        ("from mpi4py import MPI\nimport torch", FOUR, Choice("mpi", "train.py imports mpi4py; there are 4 processes")),
        (
            "def main():\n    import lightning",
            FOUR,
            Choice("torchrun", "train.py imports lightning; there are 4 processes"),
        ),
        ("import json", FOUR, Choice("torchrun", "there are 4 processes; train.py imports nothing that decides")),
        ("import json", ONE, Choice("none", "there is one process; train.py imports nothing that decides")),
        ("syntax error!", FOUR, Choice("torchrun", "there are 4 processes; train.py imports nothing that decides")),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensorflow\nelse:\n    import torch",
            FOUR,
            Choice("torchrun", "train.py imports torch; there are 4 processes"),
        ),
    ],
)
def test_what_the_script_imports_decides(tmp_path: Path, text: str, shape: NodeLayout, expected: Choice) -> None:
    assert choose("python train.py", write(tmp_path, train=text), shape, {}) == expected


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [(None, "tensorflow"), ("tensorflow", "tensorflow"), ("torch", "torchrun"), ("jax", "torchrun")],
)
def test_keras_goes_by_its_backend(tmp_path: Path, backend: str | None, launcher: str) -> None:
    env = {} if backend is None else {"KERAS_BACKEND": backend}
    assert choose("python train.py", write(tmp_path, train="import keras"), FOUR, env).launcher == launcher


def test_parameter_servers_want_tensorflow(tmp_path: Path) -> None:
    shape = NodeLayout(["chief", "parameter_server"], [0, 0])
    assert choose("python train.py", write(tmp_path, train="import trainer"), shape, {}).launcher == "tensorflow"


@pytest.mark.parametrize(
    ("run", "starter"),
    [
        ("torchrun --nproc-per-node 8 train.py", "torchrun"),
        ("pip list && exec mpirun -np 4 python train.py", "mpirun"),
        (["accelerate", "launch", "train.py"], "accelerate"),
        ("OMP_NUM_THREADS=2 /venv/bin/torchrun train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        (["bash", "-c", "deepspeed train.py"], "deepspeed"),
    ],
)
def test_who_starts_processes_by_himself_is_left_alone(tmp_path: Path, run: str | list[str], starter: str) -> None:
    choice = choose(run, write(tmp_path, train="import torch"), FOUR, {})
    assert choice == Choice("none", f"`run` starts its processes itself, by {starter}")


def test_an_images_own_entrypoint() -> None:
    assert choose(None, None, FOUR, {}).launcher == "none"


@pytest.mark.parametrize(
    ("run", "entry"),
    [
        ("python train.py --lr 1", "train.py"),
        ("python3.11 -u -W ignore -X dev ./train.py", "./train.py"),
        ("LR=1 exec /usr/bin/python3 train.py | tee log", "train.py"),
        ("cd src && python ../train.py; echo done", "../train.py"),
        ("pip install -r x.txt\npython train.py \\\n  --lr 1\n", "train.py"),
        ("uv run --with torch python train.py", "train.py"),
        ("./train.py", "./train.py"),
        (["python", "train.py"], "train.py"),
        (["sh", "-c", "(python train.py)"], "train.py"),
        ("python -m train", "-m train"),
        ("python -um train a b", "-m train"),
        ("cd src; python -m trainer.task", "-m trainer.task"),
        ("python -m pack", "-m pack"),
        ('python -c "import torch"', "-c"),
    ],
)
def test_the_entry_is_found(tmp_path: Path, run: str | list[str], entry: str) -> None:
    code = write(tmp_path, **dict.fromkeys(["train", "src/trainer/task", "pack/__main__"], "import torch"))
    found = scan(run, code)
    assert (found.entry, list(found.imports)) == (entry, ["torch"])


@pytest.mark.parametrize(
    "run",
    [
        *(
            "sh train.sh",
            "python 'unclosed",
            "python",
            "python -m",
            "python -m .",
            "",
            "python missing_framework.py",
            ["true"],
            [],
        ),
        *("python /etc/passwd", "python ../outside.py", "cd .. && python outside.py", "python train.py\0"),
        "python -m x..y",
    ],
)
def test_what_cannot_be_read_says_nothing(tmp_path: Path, run: str | list[str]) -> None:
    write(tmp_path, outside="import torch")
    code = write(tmp_path / "code", train="import torch")
    found = scan(run, code)
    assert (found.entry, found.imports) == ("", {})
    assert choose(run, code, FOUR, {}).launcher == "torchrun"


def test_own_modules_are_read_one_level_deep(tmp_path: Path) -> None:
    code = write(
        tmp_path,
        **{
            "train": "import helper, deep.inner\nfrom package import model as m",
            "helper": "import tensorflow, second",
            "second": "import horovod",
            "deep/inner": "from ... import nothing\nfrom . import sibling",
            "package/__init__": "import keras",
            "package/model": "from .layers import L\nimport torch",
            "package/layers": "import mpi4py",
        },
    )
    imports = scan("python train.py", code).imports
    assert imports["tensorflow"] == "helper.py"
    assert (imports["torch"], imports["keras"]) == ("package/model.py", "package/__init__.py")
    assert not {"horovod", "mpi4py"} & set(imports)


def test_relative_imports_of_a_module(tmp_path: Path) -> None:
    task = "from . import model\nfrom .net import Net"
    code = write(tmp_path, **{"trainer/task": task, "trainer/model": "import torch", "trainer/net": "import lightning"})
    imports = scan("python -m trainer.task", code).imports
    assert (imports["torch"], imports["lightning"]) == ("trainer/model.py", "trainer/net.py")


def test_nothing_is_run_and_nothing_outside_is_read(tmp_path: Path) -> None:
    write(tmp_path, outside="import torch")
    code = write(tmp_path / "code", train="import linked, huge, pipe, loop\nopen('ran', 'w')\nimport inside")
    (code / "linked.py").symlink_to(tmp_path / "outside.py")
    (code / "huge.py").write_bytes(b"import torch\n" + b"#" * (1 << 20))
    os.mkfifo(code / "pipe.py")  # opening it would wait for ever
    (code / "loop.py").symlink_to("loop.py")
    write(code, inside="import mpi4py")
    before = set(sys.modules)
    found = scan("python train.py", code)
    assert set(found.imports) == {"linked", "huge", "pipe", "loop", "inside", "mpi4py"}
    assert not (code / "ran").exists() and not Path("ran").exists()
    assert "mpi4py" not in set(sys.modules) - before


def test_what_would_upset_a_parser(tmp_path: Path) -> None:
    for text in (b"\xff\xfe", b"\0", b"(" * 100_000, b"x = " + b"-" * 200_000 + b"1", b""):
        (tmp_path / "train.py").write_bytes(text)
        assert scan("python train.py", tmp_path).imports == {}


def test_options_before_the_script() -> None:
    assert python_start(["python", "-m"]) is not None
    start = python_start(["env", "A=1", "python", "-B", "-Wonce", "main.py", "-m", "x"], "sub")
    assert start is not None
    assert (start.script, start.module, start.folder) == ("main.py", None, "sub")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "resources: {cloud: local, accelerator: none, nodes: 2}",
            "launcher: torchrun; train.py imports torch; there are 2 processes\n",
        ),
        ("resources: {cloud: local, accelerator: none}", ""),
        ("launcher: none\nresources: {cloud: local, accelerator: none, nodes: 2}", ""),
    ],
)
@pytest.mark.parametrize("command", [["plan"], ["submit", "--dry-run"]])
def test_the_command_line_says_it_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], more: str, said: str
) -> None:
    write(tmp_path, train="import torch")
    (tmp_path / "job.yaml").write_text(f"name: x\nrun: python train.py\n{more}\n")
    assert main([*command, str(tmp_path / "job.yaml")]) == 0
    assert capsys.readouterr().err == said
