"""Outputs of infra stacks (network, roles, job dir), stored on this computer for launches and submit.

infra/ writes them (`cloudgpu infra up`), control and provisioners read them without Pulumi. There is one file for each
cloud and region in the state directory, with mode 0600; nothing in it is secret. A launch finds or creates the
resources that the outputs lack.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...jobspecs.home import home, private
from ...jobspecs.rules.base import Verdict, listing
from ...jobspecs.secret_references import grants, is_granted
from ...storage import durable

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """Outputs of one infra stack. Its Pulumi program exports them under the name `cloudgpu`."""

    cloud: str
    region: str
    stack: str
    """Name of the Pulumi stack."""
    owner: str
    """Value of Owner.name with which its resources are tagged."""
    network: str
    """aws: VPC id. gcp: network name. azure: resource id of the virtual network."""
    subnets: Mapping[str, str] = field(default_factory=dict)
    """Zone as offers spell it -> subnet. aws: AZ id -> subnet id. gcp: "" -> self link. azure: "" -> resource id."""
    machine_role: str = ""
    """Identity of machines. aws: ARN of the instance profile. gcp: e-mail of the service account. azure: resource id of
    the user-assigned identity."""
    machine_role_id: str = ""
    """azure: client id of the identity; other clouds: ""."""
    job_dir: str = ""
    """Parent URL of job dirs, e.g. `s3://bucket/jobs`: the default for job files that name none."""
    secrets: list[str] = field(default_factory=list)
    """Secrets that the machines may read, as references without version and key (granted_by())."""
    backend: str = ""
    """URL of the Pulumi backend; "": unknown (files of older versions, and the stack's export)."""

    def role_for(self, urls: Iterable[str], secrets: Iterable[str] = ()) -> str:
        """Return `machine_role` if it grants access to all of these URLs and secrets, otherwise "".

        The role grants access to everything below `job_dir`: every job's folder, but no inputs from elsewhere.
        """
        below = f"{self.job_dir.rstrip('/')}/"
        reaches = bool(self.job_dir) and all(url.startswith(below) for url in urls)
        return self.machine_role if reaches and not self.unreadable(secrets) else ""

    def unreadable(self, secrets: Iterable[str]) -> list[str]:
        """Return the references to secrets that `machine_role` may not read."""
        return [one for one in secrets if not is_granted(one, self.secrets)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Infrastructure:
        """Deserialize outputs, ignoring unknown keys of other versions. Raises TypeError if a key is missing."""
        known = {key: one for key, one in value.items() if key in cls.__dataclass_fields__}
        return cls(**known | {"secrets": list(map(str, known.get("secrets") or ()))})


def path_of(cloud: str, region: str) -> Path:
    return home() / "infra" / f"{cloud}-{region}.json"


def load(cloud: str, region: str) -> Infrastructure | None:
    """Return the stored outputs; None: no stack is recorded on this computer. Raises ValueError, naming the file, if it
    cannot be read."""
    path = path_of(cloud, region)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Infrastructure.from_json(value["outputs"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        command = f"cloudgpu infra status --cloud {cloud} --region {region}"
        raise ValueError(f"{path} cannot be read ({error}): `{command}` writes it anew") from error


def group_obstacle(cloud: str, region: str, folders: Iterable[str], secrets: Iterable[str] = ()) -> Verdict | None:
    """Return why a job that uses these folders, and these references to secrets, cannot have a dedicated group in this
    region (job_groups.py), with advice; None: it can.

    Reads only the stored outputs, without a network call."""
    command = f"`cloudgpu infra up --cloud {cloud} --region {region}`"
    try:
        stack = load(cloud, region)
    except ValueError as error:
        return Verdict(str(error), "")
    if stack is None:
        return Verdict("recover: fleet needs an infra stack, and none is known here", f"{command} makes one")
    if not stack.machine_role or not stack.job_dir:
        return Verdict("the infra stack has no role for machines", f"{command} makes it")
    outside = [url for url in folders if not stack.role_for([f"{url.rstrip('/')}/"])]
    if outside:
        below = stack.job_dir.rstrip("/")
        message = f"machines of recover: fleet may use what is below {below} only, not {listing(outside)}"
        return Verdict(message, f"folders below {below}, or recover: supervisor")
    if unreadable := stack.unreadable(secrets):
        message = (
            f"machines of recover: fleet may read only the secrets of their infra stack, not {listing(unreadable)}"
        )
        # `infra up --secret` replaces the list: leaving out what is granted would take it from other jobs.
        whole = grants([*stack.secrets, *unreadable])
        options = " ".join(f"--secret {shlex.quote(one)}" for one in whole)
        return Verdict(
            message, f"`cloudgpu infra up --cloud {cloud} --region {region} {options}`, or recover: supervisor"
        )
    return None


def load_all(cloud: str | None = None) -> list[Infrastructure]:
    """Return all stored outputs, sorted by cloud and region. Raises ValueError as load() does."""
    places = sorted(path.stem.split("-", 1) for path in (home() / "infra").glob("*-*.json"))
    found = [load(name, region) for name, region in places if cloud in (None, name)]
    return [one for one in found if one is not None]


def save(outputs: Infrastructure) -> None:
    """Store a stack's outputs. Raises OSError."""
    path = path_of(outputs.cloud, outputs.region)
    private(path.parent)
    text = json.dumps({"format": _FORMAT, "outputs": outputs.to_json()}, indent=2)
    durable.write(path, text.encode(), mode=0o600)


def forget(cloud: str, region: str, backend: str | None = None) -> None:
    """Delete a region's stored outputs, if any.

    `backend`: keep them if they are of another Pulumi backend than this URL; a file that cannot be read is deleted."""
    with contextlib.suppress(ValueError):
        if backend is not None and (one := load(cloud, region)) is not None and one.backend not in ("", backend):
            return
    with contextlib.suppress(FileNotFoundError):
        path_of(cloud, region).unlink()
