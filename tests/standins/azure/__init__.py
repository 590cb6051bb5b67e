"""Azure on loopback: Resource Manager and Microsoft Entra ID over TLS. See tests/standins/README.md.

with Azure(boot=True) as azure:
    ComputeManagementClient(credential, SUBSCRIPTION, base_url=azure.arm)   # the rest: azure.environ(folder)
    azure.control.fail("virtualMachines.write", LOSE)

python -m cloudgpu.tests.standins.azure --boot    # as a separate process; prints the URL of its control
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from ..serving import WebServer
from ..tls import make_certificate, server_context
from .control import AzureControl
from .control import environ as environ_of
from .names import AUDITOR, SUBMITTER, SUBSCRIPTION, TENANT

__all__ = ["AUDITOR", "SUBMITTER", "SUBSCRIPTION", "TENANT", "Azure", "AzureControl"]


class Azure:
    """Context manager that runs the stand-in; `boot`: machines run their custom data. `url` is for the control, without
    TLS."""

    def __init__(self, *, boot: bool = False, port: int = 0, certificate: Path | None = None) -> None:
        """`certificate`: PEM with its key; None: create one."""
        from .app import AzureApp
        from .world import World

        world = World(boot=boot)
        world.certificate = self.certificate = certificate or make_certificate(world.folder)
        self._app = AzureApp(world)
        self._plain = WebServer(self._app, port)
        self._safe = WebServer(self._app, context=server_context(self.certificate))
        self.url = self._plain.url
        self.arm = world.url = self._safe.url
        self.control = AzureControl(self.url)

    def environ(self, folder: Path, name: str = SUBMITTER) -> dict[str, str]:
        """Return the environment that points Azure's clients to the stand-in."""
        return environ_of(self.url, folder, name)

    def __enter__(self) -> Self:
        self._plain.start()
        self._safe.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._safe.stop()
        self._plain.stop()
        self._app.close()
        self._safe.close()
        self._plain.close()
