"""What a machine is told when it is started. Whoever may describe the machine reads it: so nothing here is secret."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...jobspecs.targets import info
from ..target import Boot, target_of

BUCKETS = {"s3": "BUCKET", "gs": "BUCKET", "az": "CONTAINER@ACCOUNT"}
"""Scheme -> what follows it."""


@dataclass(frozen=True, slots=True)
class BootRecord:
    """One machine's part of an attempt; raises ValueError for what no machine could start from."""

    job_dir: str
    """URL of this job's folder: `s3://bucket/prefix/<job id>`, `gs://…`, `az://container@account/prefix/<job id>`."""
    job_id: str
    attempt: int
    node: str
    """E.g. `worker-0.1`; "" where all machines are told the same, and find out by themselves (container.py)."""
    job_sha256: str
    """Of job.json: the agent refuses any other."""
    agent_key: str
    """Of the agent file, in the job dir."""
    agent_sha256: str
    region: str
    """Where the machine is. The bucket may be elsewhere: S3 says where, when it is asked in the wrong region."""
    cloud: str
    """Target whose machine this is."""
    lifetime_s: int | None = None
    """From the first boot on; then the machine powers itself off, whatever happens. None: no limit."""
    notices: str = "none"
    """Target whose metadata server the agent watches; `none`: it watches none."""
    capacity_block_end: float | None = None
    """Epoch seconds."""
    endpoint: str | None = None
    """Of the object store, for tests: on the loopback only."""
    api_endpoint: str | None = None
    """Endpoint of the cloud's API, for tests: on the loopback only."""
    identity: str | None = None
    """Client id of the managed identity that the machine asks with; policies may have given it others."""
    fleet: str = ""
    """Name of the fleet that it is a machine of (fleet.py): `job_dir` is then the fleet's folder, from which it has its
    jobs, and what is of one job says nothing. "": it is one job's machine."""
    one_job: bool = False
    """The fleet is there for one job: a machine that finds no open order leaves it at once."""

    def __post_init__(self) -> None:
        boot = boot_of(self.cloud)
        (wanted,) = info(self.cloud).schemes
        scheme, _, rest = self.job_dir.partition("://")
        bucket = rest.partition("/")[0]
        if scheme != wanted or not bucket or (wanted == "az" and not all(bucket.partition("@"))):
            raise ValueError(
                f"{self.job_dir} is no job dir that a machine can start from: expected {wanted}://{BUCKETS[wanted]}/…"
            )
        if boot.needs_identity and not self.identity:
            raise ValueError("the machine is told no managed identity, so it could not read its job dir")
        if not self.node and not self.fleet and boot.sent_as != "container":
            raise ValueError("the machine is told no node")
        for endpoint in (self.endpoint, self.api_endpoint):
            if endpoint is not None and not is_loopback(endpoint):
                raise ValueError(f"{endpoint} cannot be a machine's endpoint: only a test's may, on 127.0.0.1")


def boot_of(cloud: str) -> Boot:
    """Return how machines of a target start. Raises ValueError for one whose machines do not boot."""
    found = target_of(cloud)
    if found is None or found.boot is None:
        raise ValueError(f"{cloud} has no machines that boot")
    return found.boot


def is_loopback(url: str) -> bool:
    """Whether a URL names this very machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
