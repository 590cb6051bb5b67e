"""Google Cloud on loopback: one HTTP server for all its APIs. See tests/standins/README.md.

with Gcp(boot=True) as gcp:
    compute_v1.InstancesClient(client_options={"api_endpoint": gcp.url}, …)   # credentials: gcp.environ(folder)
    gcp.control.fail("instances.insert", LOSE)

python -m cloudgpu.tests.standins.gcp --boot    # as a separate process; prints its URL
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from ..serving import WebServer
from .control import GcpControl
from .control import environ as environ_of
from .project import LOOKER, MACHINE, NUMBER, PROJECT, SUBMITTER, Project

__all__ = ["LOOKER", "MACHINE", "NUMBER", "PROJECT", "SUBMITTER", "Gcp", "GcpControl"]


class Gcp:
    """Context manager that runs the stand-in; `boot`: machines run their startup script, custom jobs their
    containers."""

    def __init__(self, *, boot: bool = False, port: int = 0) -> None:
        from .app import GcpApp

        project = Project(boot=boot)
        self._app = GcpApp(project)
        self._server = WebServer(self._app, port)
        self.url = project.url = self._server.url
        self.control = GcpControl(self.url)

    def environ(self, folder: Path, email: str = SUBMITTER) -> dict[str, str]:
        """Return the environment that points Google's clients to the stand-in."""
        return environ_of(self.url, folder, email)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._server.stop()
        self._app.close()
        self._server.close()
