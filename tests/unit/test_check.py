"""The parts of `cloudgpu check` that clouds share: running steps, packages, endpoints, quotas, permissions."""

from __future__ import annotations

import email.utils
import http.server
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.provisioners.checks import sdk
from cloudgpu.provisioners.checks.endpoints import UnreachableError, check_endpoints, probe
from cloudgpu.provisioners.checks.quotas import Allowance, show
from cloudgpu.provisioners.checks.results import CheckResult, Step, Subject, from_error
from cloudgpu.provisioners.checks.rights import Need, compare
from cloudgpu.provisioners.checks.runner import run_steps
from cloudgpu.provisioners.shared.api_calls import pause
from cloudgpu.provisioners.shared.clock import SystemClock

LONG_S = 180.0


def step(subject: Subject, *statuses: Any, is_gate: bool = False) -> Step:
    return Step(subject, lambda: (CheckResult(subject, status, "said") for status in statuses), is_gate)


class TestRunner:
    def test_results_stand_in_the_order_of_the_steps(self) -> None:
        first_may_end = threading.Event()

        def slow() -> Iterator[CheckResult]:
            first_may_end.wait(LONG_S)
            yield CheckResult("rights", "ok", "said")

        def fast() -> Iterator[CheckResult]:
            yield CheckResult("quota", "ok", "said")
            first_may_end.set()

        found = run_steps([step("sdk", "ok", is_gate=True), Step("rights", slow), Step("quota", fast)], LONG_S)
        assert [one.subject for one in found] == ["sdk", "rights", "quota"]

    def test_a_gate_with_an_error_skips_the_rest(self) -> None:
        gates = [step("sdk", "warning", is_gate=True), step("credentials", "error", is_gate=True)]
        found = run_steps([*gates, step("network", "ok", is_gate=True), step("job_dir", "ok")], LONG_S)
        assert [(one.subject, one.status) for one in found] == [
            ("sdk", "warning"),
            ("credentials", "error"),
            ("network", "skipped"),
            ("job_dir", "skipped"),
        ]
        assert found[-1].message == "not checked: credentials first"

    def test_a_step_that_hangs_costs_only_itself_and_keeps_what_it_had(self) -> None:
        over = threading.Event()

        def hang() -> Iterator[CheckResult]:
            yield CheckResult("quota", "ok", "us-east-1")
            over.wait(LONG_S)

        found = run_steps([Step("quota", hang), step("rights", "ok")], 0.5)
        over.set()
        assert [(one.subject, one.status) for one in found] == [("quota", "ok"), ("quota", "error"), ("rights", "ok")]
        assert found[1].message == "no answer within 0.5 s"

    def test_a_retry_that_is_given_up_at_the_timeout_is_no_success(self) -> None:
        def throttled() -> Iterator[CheckResult]:
            clock = SystemClock()
            end = clock.monotonic() + LONG_S
            while clock.monotonic() < end:
                pause(clock, 0.01)
            yield from ()

        found = run_steps([Step("account", throttled, is_gate=True), step("rights", "ok")], 0.2)
        assert [one.status for one in found] == ["error", "skipped"]

    def test_a_hanging_gate_skips_the_rest(self) -> None:
        over = threading.Event()

        def hang() -> Iterator[CheckResult]:
            over.wait(LONG_S)
            yield from ()

        found = run_steps([Step("network", hang, is_gate=True), step("rights", "ok")], 0.2)
        over.set()
        assert [one.status for one in found] == ["error", "skipped"]

    @pytest.mark.parametrize("error", [ProvisionError("auth", "no"), PermissionError(13, "no")])
    def test_errors_become_results(self, error: Exception) -> None:
        def fail() -> Iterator[CheckResult]:
            yield CheckResult("rights", "ok", "said")
            raise error

        assert [one.status for one in run_steps([Step("rights", fail)], LONG_S)] == ["ok", "error"]

    def test_an_unexpected_exception_costs_only_its_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "canary\nof two lines")

        def fail() -> Iterator[CheckResult]:
            yield CheckResult("rights", "ok", "said")
            raise AttributeError(
                f"no\nheader {os.environ['AWS_SESSION_TOKEN'].encode()!r} https://user:can/ary@host.example/"
            )

        found = run_steps([Step("rights", fail), step("quota", "ok")], LONG_S)
        assert [(one.subject, one.status) for one in found] == [("rights", "ok"), ("rights", "error"), ("quota", "ok")]
        assert found[1].message == "unexpected AttributeError: no header b'…' https://…@host.example/"

    def test_a_gate_that_raises_skips_the_rest(self) -> None:
        def fail() -> Iterator[CheckResult]:
            yield from ()
            raise KeyError("a bug")

        found = run_steps([Step("credentials", fail, is_gate=True), step("rights", "ok")], LONG_S)
        assert [one.status for one in found] == ["error", "skipped"]


class TestErrors:
    def test_advice_is_the_fix(self) -> None:
        result = from_error(
            "account",
            ProvisionError("auth", "denied: no; ask; the job goes on then", advice="ask; the job goes on then"),
        )
        assert (result.status, result.message, result.fix) == ("error", "denied: no", "ask")

    def test_what_could_not_be_read_is_a_warning_and_a_refused_login_an_error(self) -> None:
        assert from_error("quota", ProvisionError("throttled", "slow")).status == "warning"
        assert from_error("quota", ProvisionError("auth", "no"), needed=False).status == "warning"
        assert from_error("quota", ProvisionError("expired", "no"), needed=False).status == "error"

    def test_a_page_of_html_is_shortened_to_one_line(self) -> None:
        result = from_error("quota", ProvisionError("transient", "<html>\n" * 1_000))
        assert "\n" not in result.message and len(result.message) < 700


class TestPackages:
    @pytest.fixture
    def require(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CheckResult]:
        """Return a function that checks an extra with these requirements, from the metadata of an installed copy."""

        def check(*requirements: str) -> CheckResult:
            folder = tmp_path / f"{sdk.PACKAGE}-9.0.dist-info"
            folder.mkdir(exist_ok=True)
            lines = [f'Requires-Dist: {one}; extra == "aws"' for one in requirements]
            head = ["Metadata-Version: 2.1", f"Name: {sdk.PACKAGE}", "Version: 9.0", "Requires-Dist: click>=8"]
            (folder / "METADATA").write_text("\n".join([*head, "Provides-Extra: aws", *lines, ""]))
            monkeypatch.syspath_prepend(str(tmp_path))
            [result] = sdk.check_extra("aws", "boto3")
            return result

        return check

    def test_installed(self, require: Callable[..., CheckResult]) -> None:
        result = require("boto3>=1,<3")
        assert (
            result.status == "ok"
            and result.message.startswith("boto3 1.")
            and list(result.values["versions"]) == ["boto3"]
        )

    def test_not_installed(self, require: Callable[..., CheckResult]) -> None:
        result = require("boto3>=1", "no-such-package>=2")
        assert result.status == "error" and result.values == {"missing": ["no-such-package"]}
        assert "pip install '.[aws]'" in result.fix

    def test_another_version(self, require: Callable[..., CheckResult]) -> None:
        result = require("boto3>=99,<100")
        assert result.status == "warning" and "<100,>=99" in result.message and result.fix


class Server:
    """HTTP server on loopback whose responses have these headers."""

    def __init__(self, status: int = 200, **headers: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response_only(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            do_CONNECT = do_GET  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class TestEndpoints:
    @pytest.fixture(autouse=True)
    def no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    @pytest.mark.parametrize("status", [200, 302, 403, 404, 503])
    def test_any_response_is_good(self, status: int) -> None:
        with Server(status, Location="http://127.0.0.1:9/") as server:
            [result] = check_endpoints([f"http://127.0.0.1:{server.port}/"], "AWS")
        assert result.status == "ok" and result.values["proxy"] is None

    @pytest.mark.parametrize("minutes", [-20, 20])
    def test_a_clock_that_is_off(self, minutes: int) -> None:
        date = email.utils.formatdate(time.time() - 60 * minutes, usegmt=True)
        with Server(403, Date=date) as server:
            [result] = check_endpoints([f"http://127.0.0.1:{server.port}/"], "AWS")
        where = "ahead of" if minutes > 0 else "behind"
        assert (
            result.status == "error" and f"clock is 20 minutes {where} AWS's" in result.message and "set" in result.fix
        )

    def test_a_name_that_cannot_be_resolved(self) -> None:
        with pytest.raises(UnreachableError, match=r"the name ec2\.nowhere\.invalid cannot be resolved"):
            probe("https://ec2.nowhere.invalid/")

    def test_a_closed_port(self) -> None:
        with pytest.raises(UnreachableError, match="the connection is refused"):
            probe("http://127.0.0.1:9/")

    def test_no_tls(self) -> None:
        with Server() as server, pytest.raises(UnreachableError, match="TLS fails"):
            probe(f"https://127.0.0.1:{server.port}/")

    def test_no_http(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def hang_up() -> None:
                connection, _ = listening.accept()
                connection.sendall(b"\x1b[31mSSH-2.0\r\n\r\n")
                connection.close()

            threading.Thread(target=hang_up, daemon=True).start()
            with pytest.raises(UnreachableError):
                probe(f"http://127.0.0.1:{listening.getsockname()[1]}/")

    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_a_proxy_that_wants_a_login(self, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with Server(407) as server:
            monkeypatch.setenv(f"{scheme}_proxy", f"http://user:canary@127.0.0.1:{server.port}")
            [result] = check_endpoints([f"{scheme}://ec2.example.invalid/"], "AWS")
        assert result.status == "error" and f"the proxy 127.0.0.1:{server.port} wants a login" in result.message
        assert "canary" not in result.message + result.fix

    def test_a_proxy_is_named_without_its_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Server() as server:
            monkeypatch.setenv("http_proxy", f"http://user:canary@127.0.0.1:{server.port}")
            [result] = check_endpoints(["http://ec2.example.invalid/"], "AWS")
        assert result.status == "ok" and result.values["proxy"] == f"127.0.0.1:{server.port}"
        assert "canary" not in f"{result}"

    @pytest.mark.parametrize("address", ["http://[canary", "user:can/ary@host", "http://host:canary", "http://"])
    def test_a_proxy_s_address_that_is_no_url(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("https_proxy", address)
        [result] = check_endpoints(["https://ec2.example.invalid/"], "AWS")
        assert (result.status, result.message) == ("error", "the proxy's address in HTTPS_PROXY is no URL")
        assert result.fix.startswith("write HTTPS_PROXY=")

    def test_an_endpoint_that_is_no_url(self) -> None:
        [result] = check_endpoints(["https://user:canary@[bad/"], "AWS")
        assert result.status == "error" and "https://…@[bad/: " in result.message and "canary" not in f"{result}"

    def test_certificates_that_are_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
        with pytest.raises(UnreachableError, match=r"REQUESTS_CA_BUNDLE names /nowhere\.pem: No such file"):
            probe("https://127.0.0.1:9/")


class TestQuotas:
    def test_markets_stand_side_by_side(self) -> None:
        found = [
            Allowance("T4", "on-demand", "T4_GPUS", 4, 1),
            Allowance("T4", "spot", "SPOT_T4_GPUS", 0),
            Allowance("L4", "on-demand", "L4_GPUS", None),
            Allowance("P4", "spot", "P4_GPUS", 0),
        ]
        result = show("us-central1", "GPUs", found, "ask")
        assert result.message == "us-central1, GPUs on demand / spot: T4 4 (1 used)/0, L4 no limit/-; none of P4"
        assert result.values["quotas"][0] == {
            "of": "T4",
            "market": "on-demand",
            "name": "T4_GPUS",
            "limit": 4,
            "used": 1,
        }

    def test_0_of_everything_is_a_warning(self) -> None:
        found = [Allowance("T4", "on-demand", "T4_GPUS", 0)]
        assert show("eastus", "vCPUs", found, "ask").status == "warning"
        assert show("eastus", "vCPUs", found, "ask", blocked_by="ALL").message.startswith("eastus: ALL is 0")


class TestRights:
    WANTED = (Need("launch", "run", ""), Need("launch", "look", "prices are old"), Need("gc", "list", "gc is blind"))

    def test_nothing_is_missing(self) -> None:
        [result] = compare(self.WANTED, [], page="page.md", who="you")
        assert (result.status, result.message) == ("ok", "you may do all that is needed (3 permissions)")

    def test_missing_ones_are_grouped_by_what_they_cost(self) -> None:
        found = list(compare(self.WANTED, self.WANTED, page="page.md", who="you"))
        assert [(one.status, one.values["missing"]) for one in found] == [
            ("error", ["run"]),
            ("warning", ["look"]),
            ("warning", ["list"]),
        ]
        assert "page.md" in found[0].fix and found[1].message == "prices are old, without look"

    def test_a_long_list_is_cut_in_the_message_only(self) -> None:
        wanted = [Need("launch", f"action{number}", "") for number in range(30)]
        [result] = compare(wanted, wanted, page="page.md", who="you")
        assert result.message.endswith("and 22 more") and len(result.values["missing"]) == 30
