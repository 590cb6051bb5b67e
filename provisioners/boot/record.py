"""Boot record: the data sent to a machine when it is launched. It must not contain secrets: all users who may describe
the machine can read it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...jobspecs.targets import info
from ..target import Boot, target_of

BUCKETS = {"s3": "BUCKET", "gs": "BUCKET", "az": "CONTAINER@ACCOUNT"}
"""URL scheme -> format of the part between `://` and the path."""


@dataclass(frozen=True, slots=True)
class BootRecord:
    """Boot record of one machine. Raises ValueError if no machine could boot from it."""

    job_dir: str
    """URL of the job's folder: `s3://bucket/prefix/<job id>`, `gs://…`, `az://container@account/prefix/<job id>`."""
    job_id: str
    attempt: int
    node: str
    """E.g. `worker-0.1`; "": all machines get the same record and determine their node themselves (container.py)."""
    job_sha256: str
    """Hash of job.json; the agent refuses a file with another hash."""
    agent_key: str
    """Key of the agent file in the job dir."""
    agent_sha256: str
    region: str
    """Region of the machine. The bucket may be in another one: S3 names it if it gets a request in the wrong region."""
    cloud: str
    """Target that the machine belongs to."""
    lifetime_s: int | None = None
    """Seconds from the first boot after which the machine terminates itself unconditionally; None: no limit."""
    notices: str = "none"
    """Target whose metadata server the agent polls for notices; `none`: it does not poll."""
    capacity_block_end: float | None = None
    """End of the capacity block in epoch seconds; None: the machine is in none."""
    secrets_pass: str = field(default="", repr=False)
    """Proof that the machine is the job's, for which the supervisor sends it the job's secrets; no secret itself, as it
    is of no use without write access to the job dir (protocol/sealed_secrets.py)."""
    endpoint: str | None = None
    """Endpoint of the object store, for tests: on the loopback only."""
    api_endpoint: str | None = None
    """Endpoint of the cloud's API, for tests: on the loopback only."""
    identity: str | None = None
    """Client id of the managed identity to use; policies may have assigned others to the machine."""
    fleet: str = ""
    """Name of the machine's fleet (fleet.py): `job_dir` is then the fleet's folder with its orders, and the fields
    about a job and its node are empty. "": the machine belongs to one job."""
    one_job: bool = False
    """True if the fleet is for one job: a machine that finds no open order then leaves the fleet at once."""

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
    """Return a target's Boot. Raises ValueError if its machines do not boot with a bootstrap."""
    found = target_of(cloud)
    if found is None or found.boot is None:
        raise ValueError(f"{cloud} has no machines that boot")
    return found.boot


def is_loopback(url: str) -> bool:
    """Return whether the host of a URL is `localhost` or a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
