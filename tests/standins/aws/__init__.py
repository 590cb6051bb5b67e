"""AWS on loopback: moto, with extensions for what it lacks. See tests/standins/README.md.

with Aws(boot=True) as aws:                     # one in a process at a time
    boto3.client("ec2", …)                      # under aws.environ
    aws.control.set_capacity("g4dn.xlarge", "us-east-1a", "spot", 0)
    aws.control.fail("RunInstances", LOSE)

with Aws(certificate=make_certificate(folder)) as aws: …      # over TLS, for buckets that require it

python -m cloudgpu.tests.standins.aws --boot    # as a separate process; prints its URL
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from ..serving import WebServer
from ..tls import server_context, trusting
from .control import AwsControl
from .control import environ as environ_of

__all__ = ["Aws", "AwsControl"]


class Aws:
    """AWS stand-in, a context manager. `boot`: launched machines run their user data; `certificate`: PEM with its key,
    for TLS.

    `url` is for the control and has no TLS; AWS calls to it count as calls without TLS.
    """

    def __init__(self, *, boot: bool = False, port: int = 0, certificate: Path | None = None) -> None:
        from moto.moto_server.werkzeug_app import MotoRequestHandler

        from . import bucket_policies, moto_side
        from .account import Account
        from .app import App

        moto = moto_side.application()
        moto_side.reset()
        bucket_policies.obey()
        self._account = Account(boot=boot)
        app = App(self._account, moto)
        self._servers = [WebServer(app, port, MotoRequestHandler)]
        self.url = self._servers[0].url
        if certificate is not None:
            self._servers.append(WebServer(app, handler=MotoRequestHandler, context=server_context(certificate)))
        self._account.url, self._account.certificate = self._servers[-1].url, certificate
        self.control = AwsControl(self.url)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment that points AWS clients to the stand-in."""
        return {**environ_of(self._account.url), **trusting(self._account.certificate)}

    def __enter__(self) -> Self:
        for server in self._servers:
            server.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for server in reversed(self._servers):
            server.stop()
        self._account.close()
        for server in self._servers:
            server.close()
