"""The stand-in as a separate process that ends with its test, and a finder of leftover resources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..program import started
from .control import AzureControl
from .names import AUDITOR, SUBSCRIPTION, TENANT, client_id, secret

_READ_S = 180.0
_TESTERS = frozenset({"storage"})
"""Resource groups created by tests."""


@contextlib.contextmanager
def azure_process(*, boot: bool = True, certificate: Path | None = None) -> Iterator[AzureControl]:
    """Run the stand-in; yield its control. The stand-in ends when this process does, even if that is killed."""
    arguments = [] if certificate is None else ["--certificate", str(certificate)]
    with started("cloudgpu.tests.standins.azure", boot=boot, arguments=arguments) as url:
        yield AzureControl(url)


class Leftovers:
    """Finder of leftover resources, through the API as a user would, with a separate application."""

    def __init__(self, url: str) -> None:
        from azure.identity import ClientSecretCredential
        from azure.mgmt.authorization import AuthorizationManagementClient
        from azure.mgmt.compute import ComputeManagementClient
        from azure.mgmt.resource.resources import ResourceManagementClient

        result = AzureControl(url).do("environ", name=AUDITOR)
        arm, certificate = result["CLOUDGPU_AZURE_ENDPOINT"], result["REQUESTS_CA_BUNDLE"]
        trust: dict[str, Any] = {"connection_verify": certificate, "read_timeout": _READ_S}
        credential = ClientSecretCredential(
            TENANT, client_id(AUDITOR), secret(AUDITOR), authority=arm, disable_instance_discovery=True, **trust
        )
        where: dict[str, Any] = {
            **trust,
            "base_url": arm,
            "credential_scopes": ["https://management.azure.com/.default"],
            "polling_interval": 0.05,
        }
        self._resources = ResourceManagementClient(credential, SUBSCRIPTION, **where)
        self._compute = ComputeManagementClient(credential, SUBSCRIPTION, **where)
        self._roles = AuthorizationManagementClient(credential, SUBSCRIPTION, **where)
        self._staying: frozenset[str] = frozenset()

    def ignore_existing(self) -> None:
        """Ignore the existing resources, such as a stack's, from now on."""
        self._staying = frozenset(path for _, path, _ in self._all())

    def find(self) -> dict[str, list[str]]:
        """Return names by kind, without empty kinds. A stopped machine is included, since it is billed."""
        found: dict[str, list[str]] = {}
        for kind, path, name in self._all():
            if path not in self._staying:
                found.setdefault(kind, []).append(name)
        return found

    def _all(self) -> Iterator[tuple[str, str, str]]:
        """Yield kind, id and name of each resource."""
        for group in self._resources.resource_groups.list():
            if group.name not in _TESTERS:
                yield "groups", str(group.id), str(group.name)
        for one in self._resources.resources.list():
            if "/storageAccounts" not in str(one.type) and "/vaults" not in str(one.type):
                yield str(one.type).rpartition("/")[2], str(one.id), str(one.name)
        for role in self._roles.role_assignments.list_for_subscription():
            yield "roleAssignments", str(role.id), str(role.id)

    def delete(self, group: str, machine: str) -> None:
        """Delete a machine, as another user may do."""
        self._compute.virtual_machines.begin_delete(group, machine).result(_READ_S)
