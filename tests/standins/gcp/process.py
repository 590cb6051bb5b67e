"""The stand-in as a separate process that ends with its test, and a finder of leftover resources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..program import started
from .control import GcpControl
from .project import LOOKER, PROJECT

KEPT = "cloudgpu-closed-"
"""Prefix of a network's permanent firewall rules."""
_READ_S = 180.0


@contextlib.contextmanager
def gcp_process(*, boot: bool = True) -> Iterator[GcpControl]:
    """Run the stand-in; yield its control. The stand-in ends when this process does, even if that is killed."""
    with started("cloudgpu.tests.standins.gcp", boot=boot) as url:
        yield GcpControl(url)


class Leftovers:
    """Finder of leftover Compute Engine resources, through the API as a user would, with a separate account.

    `folder` is for that account's key.
    """

    def __init__(self, url: str, folder: Path) -> None:
        from google.cloud import compute_v1
        from google.oauth2 import service_account

        folder.mkdir(parents=True, exist_ok=True)
        key = GcpControl(url).key_file(LOOKER, folder / "looker.json")
        credentials = service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
            str(key), scopes=["https://www.googleapis.com/auth/cloud-platform"]
        )
        result: dict[str, Any] = {"credentials": credentials, "client_options": {"api_endpoint": url}}
        self._instances = compute_v1.InstancesClient(**result)
        self._disks = compute_v1.DisksClient(**result)
        self._firewalls = compute_v1.FirewallsClient(**result)
        self._policies = compute_v1.ResourcePoliciesClient(**result)
        self._groups = compute_v1.InstanceGroupManagersClient(**result)
        self._templates = compute_v1.InstanceTemplatesClient(**result)

    def find(self) -> dict[str, list[str]]:
        """Return names by kind, without empty kinds. A stopped instance is included, since its disk is billed."""
        found = {
            "instances": _names(self._instances, "instances"),
            "disks": _names(self._disks, "disks"),
            "policies": _names(self._policies, "resource_policies"),
            "groups": _names(self._groups, "instance_group_managers"),
            "templates": [one.name for one in self._templates.list(project=PROJECT, timeout=_READ_S)],
            "firewalls": [
                one.name
                for one in self._firewalls.list(project=PROJECT, timeout=_READ_S)
                if not one.name.startswith(KEPT)
            ],
        }
        return {kind: names for kind, names in found.items() if names}

    def delete(self, zone: str, instance: str) -> None:
        """Delete an instance, as another user may do."""
        self._instances.delete_unary(project=PROJECT, zone=zone, instance=instance, timeout=_READ_S)


def _names(client: Any, field: str) -> list[str]:
    scopes: Iterable[Any] = client.aggregated_list(project=PROJECT, timeout=_READ_S)
    return [one.name for _, scope in scopes for one in getattr(scope, field)]
