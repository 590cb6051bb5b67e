"""The HTTP requests of the bootstrap: timeouts are retried, and responses must be complete and within the size
limit."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloudgpu.jobspecs.targets import FLEET_CLOUDS
from cloudgpu.provisioners.boot import BootRecord
from cloudgpu.provisioners.boot.files import boot_files, without_prose
from cloudgpu.provisioners.boot.shipped import common

AGENT = b"the agent file"
HERE = Path(common.__file__).parent


class Handler(BaseHTTPRequestHandler):
    """Fake metadata service and S3; its first responses for the agent file are faulty."""

    ways: list[str]
    gone: threading.Event

    def do_PUT(self) -> None:
        self.reply(b"token")

    def do_GET(self) -> None:
        if self.path.endswith("iam/security-credentials/"):
            self.reply(b"role")
        elif "/meta-data/" in self.path:
            self.reply(json.dumps({"AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t"}).encode())
        else:
            way = self.ways.pop(0) if self.ways else ""
            if way == "before":
                self.gone.wait(60)
            else:
                self.reply(AGENT, way)

    def reply(self, body: bytes, way: str = "") -> None:
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:5] if way else body)
        if way == "within":
            self.gone.wait(60)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Suppress the request log."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.gone = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        Handler.gone.set()
        server.shutdown()


def fetch(folder: Path, url: str, setting: str) -> subprocess.CompletedProcess[str]:
    """Fetch the agent file with the bootstrap's own modules, with one limit changed to keep the test short."""
    record = BootRecord("s3://bucket/job", "job", 1, "worker-0.1", "", "agent", "", "us-east-1", "aws", endpoint=url)
    for name, content in boot_files(record).items():
        (folder / name).write_bytes(content)
    code = (
        f"import common; common.{setting}; import json, bucket_s3; common.PAUSE_S = (0.01, 0.01)\n"
        "there = bucket_s3.Bucket(json.load(open('boot.json')))\n"
        "print(common.retry('no agent', lambda: there.get('agent'), 5.0))"
    )
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("way", ["before", "within", "cut"])
def test_an_answer_that_hangs_or_is_cut_is_asked_for_again(tmp_path: Path, url: str, way: str) -> None:
    Handler.ways = [way]
    done = fetch(tmp_path, url, "TIMEOUT_S = 0.3")
    assert done.stdout.splitlines()[-1] == str(AGENT), done.stdout + done.stderr
    assert "trying again" in done.stdout


@pytest.mark.parametrize(("cloud", "fleet"), [*itertools.product(FLEET_CLOUDS, ("", "big")), ("vertex", "")])
def test_modules_have_the_names_there_that_they_have_here(cloud: str, fleet: str) -> None:
    job_dir = {"aws": "s3://b/j", "gcp": "gs://b/j", "azure": "az://c@a/j", "vertex": "gs://b/j"}[cloud]
    record = BootRecord(
        job_dir, "j", 1, "worker-0.1", "", "agent/a", "a", "us-east-1", cloud, identity="client", fleet=fleet
    )
    sent = boot_files(record)
    modules = json.loads(sent["boot.json"])["modules"]
    assert set(modules) == {"bucket", "host", *(["group"] if fleet else [])}
    assert {name for name in sent if name.endswith(".py")} == {
        "bootstrap.py",
        "common.py",
        *(f"{module}.py" for module in modules.values()),
    }
    assert all((HERE / name).is_file() for name in sent if name.endswith(".py"))


def test_machines_are_sent_programs_without_prose_and_with_the_same_lines() -> None:
    program = '"""What.\n\nIt is."""\n\n# why\nA = "# no comment"  # stays\n\n\ndef f():\n    """Do."""\n    pass\n'
    assert without_prose(program) == '\n\n\n\n\nA = "# no comment"  # stays\n\n\ndef f():\n\n    pass\n'
    alone = 'class E(Exception):\n    """It has nothing else."""\n'
    assert without_prose(alone) == alone


def test_a_request_that_hangs_costs_ten_seconds() -> None:
    assert common.TIMEOUT_S == 10.0


def test_an_answer_that_is_too_large_is_not_read(tmp_path: Path, url: str) -> None:
    Handler.ways = []
    done = fetch(tmp_path, url, "LARGEST = 13")
    assert "has more than 13 bytes" in done.stderr
