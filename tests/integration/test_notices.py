"""Watchers against metadata servers over real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.jobdir import JobDir, Notice, local_url, node_key
from cloudgpu.runtime.notices import CloudNotices, NodeDir, Order, Orders, Watcher, aws, azure, gcp
from cloudgpu.runtime.notices.metadata import Look, MetadataError
from cloudgpu.runtime.notices.metadata import MetadataServer as Client
from cloudgpu.runtime.notices.scheduled_notices import NoticeSchedule
from cloudgpu.runtime.notices.watch import CloudWatcher
from cloudgpu.tests.standins.agents import until
from cloudgpu.tests.standins.metadata import MetadataServer
from cloudgpu.tests.standins.metadata_aws import EVENTS, LIFECYCLE, REBALANCE, TOKEN, AwsMetadata
from cloudgpu.tests.standins.metadata_azure import EVENTS as AZURE_EVENTS
from cloudgpu.tests.standins.metadata_azure import AzureMetadata
from cloudgpu.tests.standins.metadata_gcp import BASE, GcpMetadata


class Watch:
    """A watcher of some questions, with what came of it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.orders = Orders(lambda: None)

    @contextmanager
    def over(self, *looks: Look) -> Iterator[Watch]:
        watcher = CloudWatcher(looks, NoticeSchedule(self.orders, self.lines.append), self.lines.append)
        try:
            yield self
        finally:
            watcher.stop()

    def stop(self, limit_s: float = 180.0) -> Order:
        """The order to end, once it is there."""
        until(lambda: self.orders.next_to_expire, limit_s)
        order = self.orders.next_to_expire
        assert order is not None
        return order

    def left(self) -> float:
        return self.stop().deadline - time.monotonic()


@pytest.fixture
def watch() -> Watch:
    return Watch()


def client(server: MetadataServer, watch: Watch | None = None, timeout_s: float = 180.0) -> Client:
    return Client(server.url, watch.lines.append if watch else lambda _text: None, timeout_s)


def aws_looks(server: AwsMetadata, watch: Watch | None = None) -> list[Look]:
    """The agent's own questions, more often."""
    imds = aws.Imds(client(server, watch))
    return [aws.MetadataPoll(imds, name, read, pause_s=0.05) for name, read in aws.QUESTIONS]


# --- AWS ---


def test_aws_one_token_serves_all_questions(watch: Watch) -> None:
    with AwsMetadata() as server, watch.over(*aws_looks(server)):
        until(lambda: len(server.requests) > 12)
        assert len(server.requests_for(TOKEN, "PUT")) == 1
        server.interrupt(120)
        assert 95 < watch.left() <= 110
        assert watch.lines == [watch.lines[0]] and "spot-terminate" in watch.lines[0]


def test_aws_a_refused_token_is_renewed_at_once(watch: Watch) -> None:
    with AwsMetadata() as server, watch.over(*aws_looks(server)):
        until(lambda: len(server.requests) > 5)
        server.forget_tokens()
        server.interrupt(120, "stop")
        watch.stop()
        assert len(watch.lines) == 1, "nobody has noticed"


def test_aws_a_token_is_renewed_before_it_expires() -> None:
    now = [0.0]
    with AwsMetadata() as server:
        imds = aws.Imds(client(server), clock=lambda: now[0])
        for now[0] in (0.0, 17_000.0, 17_300.0, 30_000.0):  # of 21,600 s
            assert imds.get("/latest/meta-data/instance-id") is not None
        assert len(server.requests_for(TOKEN, "PUT")) == 2


def test_aws_a_token_that_cannot_be_renewed_serves_until_it_expires() -> None:
    now = [0.0]
    with AwsMetadata() as server:
        imds = aws.Imds(client(server), clock=lambda: now[0])
        imds.get("/latest/meta-data/instance-id")
        server.token_status = 503
        now[0] = 20_000.0
        assert imds.get("/latest/meta-data/instance-id") is not None
        now[0] = 22_000.0
        with pytest.raises(MetadataError, match="HTTP 503"):
            imds.get("/latest/meta-data/instance-id")


def test_aws_saves_for_what_may_come_and_ends_for_what_does(watch: Watch) -> None:
    with AwsMetadata() as server, watch.over(*aws_looks(server)):
        server.announce(REBALANCE, {"noticeTime": "2026-10-27T08:22:00Z"})
        until(lambda: watch.orders.newest_save)
        later = formatdate(time.time() + 86_400, usegmt=True).partition(", ")[2]
        event = {"NotBefore": later, "Code": "instance-reboot", "EventId": "instance-event-1", "State": "active"}
        server.announce(EVENTS, [event])
        until(lambda: any("instance-reboot in 24 hours" in line for line in watch.lines))
        assert watch.orders.next_to_expire is None
        server.announce(LIFECYCLE, "Terminated")
        assert watch.stop().word == "terminate"


@pytest.mark.parametrize("off", [-3_600.0, 3_600.0], ids=["behind", "ahead"])
def test_a_machine_whose_clock_is_wrong_keeps_the_deadline(watch: Watch, off: float) -> None:
    with AwsMetadata() as server, watch.over(*aws_looks(server, watch)):
        server.clock_off_s = off
        server.interrupt(120)
        assert 90 < watch.left() <= 111
        said = [line for line in watch.lines if "clock" in line]
        assert said == [said[0]] and ("behind" in said[0]) == (off > 0)


def test_aws_the_end_of_a_capacity_block_is_known_from_the_launch(watch: Watch) -> None:
    with AwsMetadata() as server:
        server.clock_off_s = 3_600.0
        ends = time.time() + 3_600 + 1_800 + 100  # by the right clock: machines go from 30 min before on
        looks = aws.looks({"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}, watch.lines.append, ends)
        with watch.over(looks[-1]):
            assert 70 < watch.left() <= 91


# --- Google Cloud ---


EVENT = partial(gcp.maintenance_event, has_gpu=True, is_restarted=lambda: False)


def gcp_looks(server: GcpMetadata, wait_s: int = 60) -> list[Look]:
    http = client(server)
    return [
        gcp.Key(http, "preempted", gcp.preempted, wait_s),
        gcp.Key(http, "maintenance-event", EVENT, wait_s),
    ]


def test_gcp_a_long_poll_answers_when_the_value_changes(watch: Watch) -> None:
    with GcpMetadata() as server, watch.over(*gcp_looks(server)):
        until(lambda: len(server.requests_for(BASE + "preempted")) == 2)
        time.sleep(0.5)
        first, second = server.requests_for(BASE + "preempted")
        assert not first.query
        assert {**second.query, "last_etag": ""} == {"wait_for_change": "true", "last_etag": "", "timeout_sec": "60"}
        server.set("preempted", "TRUE")
        assert 15 < watch.left() <= 25
        assert watch.lines == ["notice from gcp: preempted in 30 s: the program is to save and end"]


def test_gcp_a_change_between_two_questions_is_not_missed() -> None:
    with GcpMetadata() as server:
        key = gcp.Key(client(server), "maintenance-event", EVENT)
        assert key.look() == []
        server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        [notice] = key.look()
        server.set("maintenance-event", "NONE")
        assert notice.kind == "terminate-on-host-maintenance"
        assert key.look() == []


def test_gcp_a_quiet_poll_is_asked_again(watch: Watch) -> None:
    with GcpMetadata() as server, watch.over(*gcp_looks(server, wait_s=1)):
        until(lambda: len(server.requests_for(BASE + "preempted")) >= 3)
        assert watch.lines == []


def test_gcp_only_200_means_something(watch: Watch) -> None:
    with GcpMetadata() as server:
        key = gcp.looks({"GCE_METADATA_HOST": server.host}, lambda _text: None)[2]
        assert key.look() == [], '{"error": ...} under 503: nothing yet'
        server.set("upcoming-maintenance", None)
        assert key.look() == []
        server.set("upcoming-maintenance", "Service Unavailable", 503)
        with pytest.raises(MetadataError, match="503"):
            key.look()
        server.set(
            "upcoming-maintenance", '{"windowStartTime": "2099-01-01T00:00:00Z", "maintenanceStatus": "PENDING"}'
        )
        [notice] = key.look()
        assert notice.kind == "upcoming-maintenance"
        server.flavor = "Other"
        server.set("upcoming-maintenance", "NONE")
        with pytest.raises(MetadataError, match="is not Google's metadata server"):
            key.look()


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("TRUE", "terminate-on-host-maintenance-then-restart"),
        ("FALSE", "terminate-on-host-maintenance"),
        (None, "terminate-on-host-maintenance"),
    ],
)
def test_gcp_whether_the_machine_is_started_again_is_asked(setting: str | None, kind: str) -> None:
    with GcpMetadata() as server:
        server.set("scheduling/automatic-restart", setting)
        server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        restarts = partial(gcp.automatic_restart, client(server))
        key = gcp.Key(
            client(server), "maintenance-event", partial(gcp.maintenance_event, has_gpu=True, is_restarted=restarts)
        )
        assert [notice.kind for notice in key.look()] == [kind]


def test_gcp_a_container_of_vertex_ai_does_not_come_back(watch: Watch) -> None:
    with GcpMetadata() as server:
        server.set("scheduling/automatic-restart", "TRUE")
        server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        environ = {"GCE_METADATA_HOST": server.host, "CLUSTER_SPEC": "{}"}
        [notice] = gcp.looks(environ, watch.lines.append)[1].look()
        assert not notice.kind.endswith("-then-restart")


def test_gcp_an_unknown_answer_about_restarts_is_no_answer(watch: Watch) -> None:
    """Else a machine that comes back would be given up, or one that does not would be waited for."""
    with GcpMetadata() as server:
        server.set("scheduling/automatic-restart", "Service Unavailable", 503)
        looks = gcp.looks({"GCE_METADATA_HOST": server.host}, watch.lines.append)
        server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        with pytest.raises(MetadataError, match="503"):
            looks[1].look()
        server.set("scheduling/automatic-restart", "TRUE")
        [notice] = looks[1].look()
        assert notice.kind.endswith("-then-restart")


# --- Azure ---


def azure_events(server: AzureMetadata) -> azure.ScheduledEvents:
    """The agent's own question, more often."""
    events = azure.ScheduledEvents(client(server))
    events.pause_s = 0.05
    return events


def test_azure_the_first_answer_may_take_its_time(watch: Watch) -> None:
    with AzureMetadata(first_s=1.5) as server:
        events = azure.ScheduledEvents(client(server, timeout_s=0.5), first_s=30)
        with watch.over(events):
            server.announce("Preempt", 30, "TRAINER_0", "neighbour")
            assert 15 < watch.left() <= 25
        assert watch.lines[0].startswith("notice from azure (Host server is undergoing maintenance.): preempt")
        assert len(server.requests_for(AZURE_EVENTS)) == 1


def test_azure_events_of_other_machines_are_not_ours(watch: Watch) -> None:
    with AzureMetadata() as server, watch.over(azure_events(server)):
        server.announce("Preempt", 30, "trainer_1", "trainer_01", "trainer")
        until(lambda: len(server.requests_for(AZURE_EVENTS)) >= 3)
        assert watch.lines == []


def test_azure_what_a_machine_came_back_from_does_not_end_it(watch: Watch) -> None:
    with AzureMetadata() as server:
        server.announce("Reboot", None)
        with watch.over(azure_events(server)):
            until(lambda: len(server.requests_for(AZURE_EVENTS)) >= 2)
            assert watch.lines == []
            server.announce("Redeploy", None)  # hardware that has failed: started at once
            assert 0 < watch.left() <= 10


def test_azure_a_planned_event_that_begins_early(watch: Watch) -> None:
    with AzureMetadata() as server, watch.over(azure_events(server)):
        freeze = server.announce("Freeze", 900)
        end = server.announce("Terminate", 900)
        until(lambda: watch.orders.newest_save)
        assert watch.orders.next_to_expire is None
        server.over(freeze)
        server.announce("Terminate", 60, event_id=end)
        assert 30 < watch.left() <= 50


def test_azure_a_reboot_of_this_machine_alone_is_not_waited_for(watch: Watch) -> None:
    with AzureMetadata() as server, watch.over(azure_events(server)):
        shared = server.announce("Reboot", 900, "trainer_0", "neighbour")
        until(lambda: watch.orders.newest_save)
        assert watch.orders.next_to_expire is None, "somebody else may have to agree: it trains on until it is near"
        server.over(shared)
        server.announce("Redeploy", 900)
        assert 600 < watch.left() <= 890


# --- the stand-ins are as strict as what they stand for ---


@pytest.mark.parametrize(
    ("server", "method", "path", "headers", "status"),
    [
        (AwsMetadata, "GET", "/latest/meta-data/instance-id", {}, 401),
        (AwsMetadata, "GET", "/latest/meta-data/instance-id", {"X-aws-ec2-metadata-token": "made up"}, 401),
        (AwsMetadata, "PUT", TOKEN, {}, 400),
        (AwsMetadata, "PUT", TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": "21601"}, 400),
        (AwsMetadata, "PUT", TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": "60", "X-Forwarded-For": "10.0.0.1"}, 403),
        (GcpMetadata, "GET", BASE + "preempted", {}, 403),
        (GcpMetadata, "GET", BASE + "preempted", {"Metadata-Flavor": "Google", "X-Forwarded-For": "10.0.0.1"}, 403),
        (AzureMetadata, "GET", AZURE_EVENTS + "?api-version=2020-07-01", {}, 400),
        (AzureMetadata, "GET", AZURE_EVENTS, {"Metadata": "true"}, 400),
    ],
)
def test_what_the_vendors_refuse(
    server: Callable[[], MetadataServer], method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with server() as standin:
        assert client(standin).request(path, headers, method=method).status == status


# --- the job dir ---


def test_a_simulated_maintenance_is_saved_for_and_then_stopped_for(watch: Watch, tmp_path: Path) -> None:
    job_dir = JobDir(local_url(tmp_path))
    notice = Notice("maintenance", time.time() + 12.5, "test", 12.5)
    job_dir.put(node_key(1, "worker-0.1", "notice.json"), notice.to_bytes())
    watcher = Watcher(job_dir, 1, "worker-0.1", watch.orders, watch.lines.append)
    try:
        until(lambda: watch.orders.newest_save)
        assert watch.orders.next_to_expire is None
        assert watch.stop().vanishes, "as if the machine were taken"
    finally:
        watcher.stop()


# --- whatever else answers there ---

_LOOKS: dict[str, tuple[Callable[[], MetadataServer], Callable[[Client], Look]]] = {
    "aws": (AwsMetadata, lambda http: aws.MetadataPoll(aws.Imds(http), "spot/instance-action", aws.spot_action)),
    "gcp": (GcpMetadata, lambda http: gcp.Key(http, "preempted", gcp.preempted)),
    "azure": (AzureMetadata, lambda http: azure.ScheduledEvents(http, first_s=0.3)),
}
_FAULTS = [301, 401, 403, 404, 429, 500, 503, "hang", "garbage", "huge", "reset", "drip", "html"]


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize("cloud", _LOOKS)
def test_what_is_no_answer_is_an_error_that_is_dealt_with(cloud: str, fault: Any) -> None:
    make_server, make_look = _LOOKS[cloud]
    with make_server() as server:
        http = client(server, timeout_s=0.3)
        look = make_look(http)
        server.fault = fault
        with pytest.raises(MetadataError) as caught:
            look.look()  # what hangs or drips does so for as long as the server is there
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
        server.fault = None
        server.preempt()
        http._timeout_s = 180.0  # a busy computer's server takes its time, too
        [notice] = look.look()
        assert notice.cloud == cloud


def test_nobody_there(watch: Watch) -> None:
    with AwsMetadata() as server:
        pass
    for _, make_look in _LOOKS.values():
        with pytest.raises(MetadataError, match="no answer from"):
            make_look(client(server, timeout_s=0.3)).look()


@pytest.mark.parametrize("fault", [403, "hang"])
def test_trouble_is_said_once_and_the_notice_comes_all_the_same(watch: Watch, fault: Any) -> None:
    with AwsMetadata() as server:
        imds = aws.Imds(client(server, timeout_s=0.2))
        server.fault = fault
        with watch.over(*(aws.MetadataPoll(imds, name, read, pause_s=0.05) for name, read in aws.QUESTIONS)):
            until(lambda: len(server.requests) >= 6)
            assert len(watch.lines) == 1 and watch.lines[0].endswith("; it is asked again")
            server.interrupt(120)
            server.fault = None
            watch.stop()


def test_proxies_are_not_used(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    with AwsMetadata() as server, watch.over(*aws_looks(server)):
        server.interrupt(120)
        watch.stop()


def test_an_unknown_cloud_and_an_impossible_address_are_said(watch: Watch, tmp_path: Path) -> None:
    own = NodeDir(JobDir(local_url(tmp_path)), 1, "worker-0.1")
    CloudNotices("gpc", own, watch.orders, watch.lines.append, environ={}).stop()
    CloudNotices("gcp", own, watch.orders, watch.lines.append, environ={"GCE_METADATA_HOST": "h:x"}).stop()
    assert [line.partition(": ")[0] for line in watch.lines] == [
        "notices are not watched",
        "notices of gcp are not watched",
    ]
