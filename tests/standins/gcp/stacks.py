"""An infra stack in the stand-in's project, as created by `cloudgpu infra up`."""

from __future__ import annotations

from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure

from ..gce.control import GceControl
from .project import PROJECT, account

REGION = "us-central1"
NETWORK = f"cloudgpu-{REGION}"
ROLE = account(NETWORK)
"""Service account of its machines."""


def create_stack(control: GceControl, job_dir: str, role: str = ROLE) -> Infrastructure:
    """Create the network and the machines' account, and save the outputs in the state directory."""
    control.add_network(NETWORK, regions=[REGION], private_access=True)
    control.add_account(role)
    subnet = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/regions/{REGION}/subnetworks/{NETWORK}"
    made = Infrastructure(
        "gcp", REGION, f"infra-gcp-{REGION}", "tester@here", NETWORK, {"": subnet}, machine_role=role, job_dir=job_dir
    )
    infra_outputs.save(made)
    return made
