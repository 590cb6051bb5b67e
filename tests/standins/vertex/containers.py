"""Replicas of a custom job: each container's command runs as local processes.

A container's disk is a folder, with `root` as HOME and `console.log` for its output; absolute paths are the computer's.
Its environment has PATH, HOME, LANG, TMPDIR, the variables of the job's spec and of Vertex AI, and the addresses that
replace the metadata server and Cloud Storage. Its python3 does not belong to a virtual environment. As in a container,
its first process receives SIGTERM only if it handles it, and when it ends all other processes end.

CLUSTER_SPEC and TF_CONFIG follow "Distributed training"
(cloud.google.com/vertex-ai/docs/training/distributed-training), the AIP_* variables the API reference of CustomJobSpec,
CLOUD_ML_PROJECT_ID and CLOUD_ML_JOB_ID google/cloud/aiplatform/initializer.py and
training_utils/environment_variables.py. Unlike there, replicas have loopback addresses, each with a separate port.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..gcp.project import Project
from ..gcp.service import ANY_SCOPE
from ..gcp.tokens import TOKEN_S
from ..gcp_metadata import InstanceMetadata
from ..machine import PYTHON
from ..metadata import MetadataServer
from ..processes import kill_all

_TF_NAMES = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}
_OWN_ACCOUNT = "service-{}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
"""The Custom Code Service Agent, the default account of jobs."""
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")
_OUTPUTS = {"AIP_MODEL_DIR": "model/", "AIP_CHECKPOINT_DIR": "checkpoints/", "AIP_TENSORBOARD_LOG_DIR": "logs/"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Container:
    """One replica. `ended` is called in a separate thread when its first process has ended."""

    def __init__(
        self,
        replica: str,
        root: Path,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        metadata: MetadataServer,
        ended: Callable[[], None],
    ) -> None:
        self.replica, self.root = replica, root
        self.code: int | None = None
        """Exit code of its first process; 128 + the signal's number if it was killed."""
        self.taken = False
        """Its machine is being preempted: the container's exit code does not end the job."""
        self.trouble: list[str] = []
        """Problems that would also occur in a real container; tests assert that it is empty."""
        self._words, self._environ, self._ended = words, dict(environ), ended
        self._metadata = metadata
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()

    def start(self) -> None:
        for folder in ("bin", "root", "tmp"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "bin/python3").symlink_to(PYTHON)
        self._metadata.__enter__()
        environment = {
            "PATH": f"{self.root / 'bin'}:{_PATH}",
            "HOME": str(self.root / "root"),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.root / "tmp"),
            "GCE_METADATA_HOST": self._metadata.host,
            "GCE_METADATA_IP": self._metadata.host,
            **self._environ,
        }
        words = [_expanded(word, self._environ) for word in self._words]
        with (self.root / "console.log").open("wb") as console:
            try:
                self._process = subprocess.Popen(
                    words,
                    cwd=self.root,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    start_new_session=True,
                )
            except OSError as error:
                self.trouble.append(f"failed to create containerd task: {error}")
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds; return when all processes have ended."""
        process = self._process
        if process is not None and process.poll() is None and grace_s > 0:
            if _handles_sigterm(process.pid):
                process.send_signal(signal.SIGTERM)
            self._over.wait(grace_s)
        self.kill()
        self._over.wait()

    def kill(self) -> None:
        """Send SIGKILL to the first process, whose end kills the others."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def told(self) -> dict[str, Any]:
        console = self.root / "console.log"
        return {
            "replica": self.replica,
            "root": str(self.root),
            "code": self.code,
            "running": not self._over.is_set(),
            "trouble": list(self.trouble),
            "console": console.read_text(errors="replace") if console.exists() else "",
        }

    def _watch(self) -> None:
        code = 128 if self._process is None else self._process.wait()  # 128: the container could not be created
        try:
            kill_all(self.root)
        except RuntimeError as error:
            self.trouble.append(str(error))
        self._metadata.__exit__(None, None, None)
        self.code = code if code >= 0 else 128 - code
        self._over.set()
        self._ended()


def containers_of(job: Any, project: Project, folder: Path, ended: Callable[[], None]) -> list[Container]:
    """Return a container for each replica of a CustomJob (protobuf), the primary one first."""
    pools = job.job_spec.worker_pool_specs
    cluster = {
        f"workerpool{number}": [f"127.0.0.1:{_free_port()}" for _ in range(pool.replica_count)]
        for number, pool in enumerate(pools)
        if pool.replica_count
    }
    made: list[Container] = []
    for number, pool in enumerate(pools):
        name = f"workerpool{number}"
        words = [*pool.container_spec.command, *pool.container_spec.args]
        given = {variable.name: variable.value for variable in pool.container_spec.env}
        for index in range(pool.replica_count):
            environ = {**given, **_vertex_environ(job, project, cluster, name, index)}
            replica = f"{name}-{index}"
            server = _metadata(project, job)
            made.append(Container(replica, folder / replica, words, environ, metadata=server, ended=ended))
    return made


def _metadata(project: Project, job: Any) -> MetadataServer:
    """Return a replica's metadata server, with the job's account and the project.

    That it has no notice of the machine's end is not verified.
    """
    account = job.job_spec.service_account or _OWN_ACCOUNT.format(project.number)
    described = {
        "instance": {"zone": f"projects/{project.number}/zones/{job.name.split('/')[3]}-a"},
        "project": {"project-id": project.id, "numeric-project-id": project.number},
    }
    made = InstanceMetadata(
        lambda: described, lambda: (project.tokens.issue(account), TOKEN_S), (account, (ANY_SCOPE,))
    )
    made.values.clear()
    return made


def _vertex_environ(
    job: Any, project: Project, cluster: Mapping[str, Sequence[str]], pool: str, index: int
) -> dict[str, str]:
    from google.protobuf.json_format import MessageToJson

    spec = {
        "cluster": cluster,
        "environment": "cloud",
        "task": {"type": pool, "index": index, "trial": ""},
        "job": MessageToJson(job.job_spec, preserving_proto_field_name=True, indent=None),
    }
    tf_config = {
        "cluster": {_TF_NAMES[name]: addresses for name, addresses in cluster.items() if name != "workerpool3"},
        "environment": "cloud",
        "task": {"type": _TF_NAMES[pool], "index": index, "trial": ""},
        "job": spec["job"],
    }
    found = {
        "CLUSTER_SPEC": json.dumps(spec),
        "TF_CONFIG": json.dumps(tf_config),
        "CLOUD_ML_PROJECT_ID": project.number,
        "CLOUD_ML_JOB_ID": str(job.name.rpartition("/")[2]),
        "STORAGE_EMULATOR_HOST": project.url,
    }
    if output := job.job_spec.base_output_directory.output_uri_prefix:
        found |= {name: f"{output.rstrip('/')}/{folder}" for name, folder in _OUTPUTS.items()}
    return found


def _expanded(word: str, environ: Mapping[str, str]) -> str:
    """Expand `$(NAME)` and `$$` as Kubernetes does in commands; unknown names are left unchanged."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else environ.get(found[2], found[0])

    return _REFERENCE.sub(value, word)


def _handles_sigterm(pid: int) -> bool:
    """Return whether a process handles SIGTERM: the first process of a container receives only signals that it handles
    (man 7 pid_namespaces)."""
    # A new program may not have installed its handler yet.
    for _ in range(10):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught, 16) & (1 << (signal.SIGTERM - 1)):
            return True
        time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
