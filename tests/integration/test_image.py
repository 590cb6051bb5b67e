"""The real image: built by podman on a base of Debian packages, run, killed, stopped, out of memory, resumed.

`make image-test` and `.ci/run` build the base and run these tests; elsewhere they are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

BASE_TAR = os.environ.get("CLOUDGPU_IMAGE_BASE")
pytestmark = [
    pytest.mark.skipif(not BASE_TAR or not shutil.which("podman"), reason="run by `make image-test`"),
    pytest.mark.timeout(900),
]

CONTAINERS_CONF = Path(__file__).parents[1] / "image" / "containers.conf"

TRAIN = """
import os, random, sys, time
from cloudgpu.runtime import Checkpointer

class Model:
    def __init__(self): self.weights = [0.0] * 64
    def state_dict(self): return {"weights": self.weights}
    def load_state_dict(self, state): self.weights = state["weights"]

random.seed(1)
model = Model()
ckpt = Checkpointer(model=model, folder=os.environ["CLOUDGPU_CHECKPOINTS"], every=5)
print("begin", ckpt.step, flush=True)
hog = []
for step in ckpt.steps(int(sys.argv[1])):
    model.weights[step % 64] += random.random()
    print("step", step + 1, flush=True)
    if f"memory={step + 1}" in sys.argv:
        while True:
            hog.append(bytearray(16 << 20))
    if f"linger={step + 1}" in sys.argv:
        time.sleep(600)
    time.sleep(0.01)
print("end", sum(model.weights).hex(), flush=True)
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    os.environ["CONTAINERS_CONF"] = str(CONTAINERS_CONF)
    name = f"localhost/cloudgpu-test-{uuid.uuid4().hex[:8]}"
    podman("import", str(BASE_TAR), f"{name}-base:1")
    cloudgpu("image", "build", "--engine=podman", f"--base={name}-base:1", f"--tag={name}:1", "--offline")
    yield f"{name}:1"
    podman("rmi", "--force", f"{name}:1", f"{name}-base:1")
    del os.environ["CONTAINERS_CONF"]


def podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cloudgpu(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "cloudgpu", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    return tmp_path


def start(image: str, place: Path, *program: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    folders = ["--code", str(place / "code"), "--checkpoints", str(place / "checkpoints")]
    command = [sys.executable, "-m", "cloudgpu", "image", "run", "--engine=podman", *folders, *options]
    command += [image, "--", "train.py", *program]
    # Run in `place`, because podman leaves a file `oom` in its working directory when memory runs out.
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_until(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        word, value = line.split()
        if word == "step" and int(value) >= step:
            return
    raise AssertionError(f"it ended before step {step}: {process.stderr.read() if process.stderr else ''}")


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines()


def container(image: str) -> str:
    return podman("ps", "--quiet", "--filter", f"ancestor={image}").strip()


def test_contents(image: str) -> None:
    found = json.loads(podman("inspect", image))[0]
    assert found["User"] == "10001:10001"
    assert found["Config"]["StopSignal"] in {"SIGTERM", "15"}
    assert found["Labels"]["org.opencontainers.image.title"] == "cloudgpu runtime"
    inside = ["run", "--rm", "--network=none", "--read-only", "--cap-drop=all"]
    packages = json.loads(podman(*inside, "--entrypoint=cat", image, "/opt/cloudgpu/packages.json"))
    assert {"cloudgpu", "obstore", "xxhash"} <= {package["name"] for package in packages}
    assert "usage: python -m cloudgpu.runtime" in podman(*inside, image)
    listed = podman(*inside, "--entrypoint=ls", image, "-a", "/tmp", "/opt/cloudgpu", "/home/trainer")
    assert "wheels" not in listed


def test_killed_it_resumes(image: str, place: Path) -> None:
    undisturbed = finish(start(image, place, "60"))[-1]
    shutil.rmtree(place / "checkpoints")
    process = start(image, place, "60", "linger=23")
    run_until(process, 23)
    until = time.monotonic() + 180
    while not list((place / "checkpoints").glob("000000[12]*/COMMIT.json")):
        assert time.monotonic() < until, "step 10 is not committed"
        time.sleep(0.05)
    podman("kill", "--signal=KILL", container(image))
    process.communicate(timeout=180)
    assert process.returncode == 137
    lines = finish(start(image, place, "60"))
    begun = int(lines[0].split()[1])
    assert begun >= 10, "what had been committed before the kill is where it goes on"
    assert lines[-1] == undisturbed


def test_stopped_it_saves_first(image: str, place: Path) -> None:
    process = start(image, place, "100000")
    run_until(process, 8)
    begun = time.monotonic()
    podman("stop", "--time=60", container(image))
    _, err = process.communicate(timeout=180)
    assert process.returncode == 75, err
    assert time.monotonic() - begun < 60, "it heard the signal, and was not killed"
    again = start(image, place, "12")
    assert finish(again)[-1].startswith("end ")


def test_out_of_memory_it_is_killed_and_resumes(image: str, place: Path) -> None:
    process = start(image, place, "60", "memory=30", options=("--memory", "256m"))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 137, err
    lines = finish(start(image, place, "60", options=("--memory", "256m")))
    assert int(lines[0].split()[1]) >= 10
    assert lines[-1].startswith("end ")


def test_pushed_and_pulled_again(image: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    cloudgpu("image", "push", "--engine=podman", image, f"oci-archive:{archive}")
    assert archive.stat().st_size > 10 << 20
