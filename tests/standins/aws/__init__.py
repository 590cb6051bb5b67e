"""AWS on the loopback: moto, and round it what moto lacks. See tests/standins/README.md.

with Aws(boot=True) as aws:                     # one in a process at a time
    boto3.client("ec2", …)                      # under aws.environ
    aws.control.set_capacity("g4dn.xlarge", "us-east-1a", "spot", 0)
    aws.control.fail("RunInstances", LOSE)

python -m cloudgpu.tests.standins.aws --boot    # as a process of its own; prints its URL
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ..serving import WebServer
from .control import AwsControl
from .control import environ as environ_of

__all__ = ["Aws", "AwsControl"]


class Aws:
    """A context manager; `boot`: launched machines run their user data."""

    def __init__(self, *, boot: bool = False, port: int = 0) -> None:
        from moto.moto_server.werkzeug_app import MotoRequestHandler

        from . import moto_side
        from .account import Account
        from .app import App

        moto = moto_side.application()
        moto_side.reset()
        self._account = Account(boot=boot)
        self._server = WebServer(App(self._account, moto), port, MotoRequestHandler)
        self.url = self._account.url = self._server.url
        self.control = AwsControl(self.url)

    @property
    def environ(self) -> dict[str, str]:
        """What points any client of AWS's to the stand-in."""
        return environ_of(self.url)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._server.stop()
        self._account.close()
        self._server.close()
