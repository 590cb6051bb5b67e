"""What stands in a cloud before any job: the outputs of its infra stack, as launches and submit use them.

infra/ writes them (`cloudgpu infra up`), control and provisioners read them; Pulumi is not needed to. One file for
each cloud and region in the state directory, 0600; nothing in it is secret. What is not said there is found, or made
for each launch, as without a stack.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...jobspecs.home import home, private
from ...jobspecs.rules.base import Verdict, listing
from ...storage import durable

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """Outputs of one infra stack; also what its program exports under `cloudgpu`."""

    cloud: str
    region: str
    stack: str
    """Name of the Pulumi stack."""
    owner: str
    """As in Owner.name: who its things are tagged with."""
    network: str
    """aws: VPC id. gcp: the network's name. azure: resource id of the virtual network."""
    subnets: Mapping[str, str] = field(default_factory=dict)
    """Zone, as offers spell it, -> subnet. aws: AZ id -> subnet id. gcp: "" -> self link. azure: "" -> resource id."""
    machine_role: str = ""
    """Who machines are. aws: ARN of the instance profile. gcp: e-mail of the service account. azure: resource id of the
    user-assigned identity."""
    machine_role_id: str = ""
    """azure: client id of the same; elsewhere ""."""
    job_dir: str = ""
    """URL below which job dirs are, e.g. `s3://bucket/jobs`: the default of job files that name none."""
    backend: str = ""
    """URL of where the stack is kept; "": not known, as of one that an older version wrote down, and in the export."""

    def role_for(self, urls: Iterable[str]) -> str:
        """`machine_role`, if it reaches all of these; "": it does not, or there is none.

        It reaches what is below `job_dir`: every job's folder, but no inputs from elsewhere.
        """
        below = f"{self.job_dir.rstrip('/')}/"
        return self.machine_role if self.job_dir and all(url.startswith(below) for url in urls) else ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Infrastructure:
        """Lenient: what another version added is dropped. Raises TypeError if something is missing."""
        return cls(**{key: one for key, one in value.items() if key in cls.__dataclass_fields__})


def path_of(cloud: str, region: str) -> Path:
    return home() / "infra" / f"{cloud}-{region}.json"


def load(cloud: str, region: str) -> Infrastructure | None:
    """None: no stack is known here. Raises ValueError for a file that cannot be read, naming it."""
    path = path_of(cloud, region)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Infrastructure.from_json(value["outputs"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        command = f"cloudgpu infra status --cloud {cloud} --region {region}"
        raise ValueError(f"{path} cannot be read ({error}): `{command}` writes it anew") from error


def group_obstacle(cloud: str, region: str, folders: Iterable[str]) -> Verdict | None:
    """Why a job that uses these folders cannot have a group of its own there (job_groups.py), and what to do about it;
    None: it can. Nobody is asked but this computer."""
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
    return None


def known(cloud: str | None = None) -> list[Infrastructure]:
    """All that are known here, by cloud and region. Raises ValueError as load()."""
    places = sorted(path.stem.split("-", 1) for path in (home() / "infra").glob("*-*.json"))
    found = [load(name, region) for name, region in places if cloud in (None, name)]
    return [one for one in found if one is not None]


def save(outputs: Infrastructure) -> None:
    """Raises OSError."""
    path = path_of(outputs.cloud, outputs.region)
    private(path.parent)
    text = json.dumps({"format": _FORMAT, "outputs": outputs.to_json()}, indent=2)
    durable.write(path, text.encode(), mode=0o600)


def forget(cloud: str, region: str, backend: str | None = None) -> None:
    """`backend`: only if its stack is kept there, or nobody knows where; so is one that cannot be read."""
    with contextlib.suppress(ValueError):
        if backend is not None and (one := load(cloud, region)) is not None and one.backend not in ("", backend):
            return
    with contextlib.suppress(FileNotFoundError):
        path_of(cloud, region).unlink()
