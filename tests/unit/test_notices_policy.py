"""From a provider's notices to orders for the program, with their times. Time is passed in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from email.message import Message
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.runtime.notices import Order, Orders, SignalOrders, aws, azure, gcp, write_notice
from cloudgpu.runtime.notices.metadata import MetadataError, MetadataServer, Reply, epoch_of
from cloudgpu.runtime.notices.policy import CLOUDS, policies_of, policy_of
from cloudgpu.runtime.notices.scheduled_notices import NoticeSchedule, ProviderNotice

POLICIES = [policy for cloud in (*CLOUDS, "signal", "simulated") for policy in policies_of(cloud).values()]
NOW = 1_000.0  # on the monotonic clock
WALL = 1_800_000_000.0  # on this machine's clock


class Ledger(Orders):
    """Orders that record each order added."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.given: list[Order] = []

    def add(self, order: Order) -> None:
        self.given.append(order)
        super().add(order)


class Desk:
    """NoticeSchedule that records its orders, log lines and stops."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stops: list[tuple[str, float]] = []
        self.orders = Ledger()
        self.given = self.orders.given
        self.docket = NoticeSchedule(
            self.orders, self.lines.append, lambda notice, at: self.stops.append((notice.id, at))
        )

    def sent(self) -> list[tuple[str, float]]:
        """Return (action, seconds from NOW to the deadline) of every order so far."""
        return [(order.action, order.deadline - NOW) for order in self.given]


def reply(body: Any, *, date: float | None = WALL) -> Reply:
    headers = Message()
    if date is not None:
        headers["Date"] = formatdate(date, usegmt=True)
    data = body if isinstance(body, str) else json.dumps(body)
    return Reply(200, headers, data.encode(), NOW, WALL)


# --- the table ---


def test_every_kind_has_one_row() -> None:
    keys = [(policy.cloud, policy.kind) for policy in POLICIES]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.cloud}-{policy.kind}")
def test_rows_make_sense(policy: Any) -> None:
    assert policy.source
    assert 0 <= policy.margin_s < policy.lead_s
    if policy.stop_s is not None:
        assert policy.action == "save"
        assert policy.margin_s < policy.stop_s < policy.lead_s, "time to stop, and to train until then"
    if policy.action != "save":
        assert policy.near_s is None and policy.stop_s is None
    if policy.vanishes:
        assert policy.cloud == "simulated", "on a real machine a result is written first"


def test_the_docs_have_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "notices.md").read_text().splitlines()
    documented = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page if line.startswith("|")}
    for policy in POLICIES:
        figures = (policy.lead_s, policy.near_s, policy.stop_s, policy.margin_s)
        assert (policy.cloud, policy.kind, policy.action, *("" if n is None else str(n) for n in figures)) in documented


def test_an_unknown_kind_of_notice_saves_and_does_not_stop() -> None:
    policy = policy_of("azure", "teleport")
    assert (policy.action, policy.stop_s) == ("save", None)


# --- the docket ---


def test_a_stop_is_ordered_at_once_and_ends_before_the_event() -> None:
    desk = Desk()
    notice = ProviderNotice("aws", "spot-terminate", "a", NOW + 118)
    for later in (0, 5, 10):
        desk.docket.update("spot", [notice], NOW + later)
    assert desk.sent() == [("stop", 108)]
    assert desk.given[0].outcome == "preempted" and not desk.given[0].vanishes
    assert desk.lines == ["notice from aws: spot-terminate in 118 s: the program is to save and end"]


def test_without_a_time_the_lead_time_counts_from_sight() -> None:
    desk = Desk()
    desk.docket.update("preempted", [ProviderNotice("gcp", "preempted", "p")], NOW)
    desk.docket.update("preempted", [ProviderNotice("gcp", "preempted", "p")], NOW + 7)
    assert desk.sent() == [("stop", 25)]


def test_a_planned_event_is_saved_for_and_stopped_for_later() -> None:
    desk = Desk()
    desk.docket.update("m", [ProviderNotice("gcp", "terminate-on-host-maintenance", "m")], NOW)
    assert desk.sent() == [("save", 3590)]
    desk.docket.advance(NOW + 3479)
    assert desk.sent() == [("save", 3590)]
    desk.docket.advance(NOW + 3480)
    desk.docket.advance(NOW + 3600)
    assert desk.sent() == [("save", 3590), ("stop", 3590)]
    assert desk.stops == [("m", NOW + 3600)]
    first, second = desk.given
    assert first.id != second.id


def test_what_is_announced_90_days_ahead_is_only_reported_until_it_is_near() -> None:
    desk, days = Desk(), 86_400.0
    notice = ProviderNotice("gcp", "upcoming-maintenance", "u", NOW + 90 * days)
    desk.docket.update("u", [notice], NOW)
    desk.docket.update("u", [notice], NOW + 89 * days)
    assert desk.sent() == []
    [line] = desk.lines
    assert line.startswith("notice from gcp: upcoming-maintenance in 90 days: the program is to save when that is near")
    desk.docket.advance(NOW + 90 * days - 3_600)
    assert [action for action, _ in desk.sent()] == ["save"]
    desk.docket.advance(NOW + 90 * days - 120)
    assert [action for action, _ in desk.sent()] == ["save", "stop"]


def test_a_freeze_is_only_reported() -> None:
    desk = Desk()
    desk.docket.update("e", [ProviderNotice("azure", "freeze", "f", NOW + 900)], NOW)
    desk.docket.advance(NOW + 900)
    assert desk.given == [] and len(desk.lines) == 1


def test_a_rebalance_recommendation_never_stops_anything() -> None:
    desk = Desk()
    desk.docket.update("r", [ProviderNotice("aws", "rebalance-recommendation", "r")], NOW)
    desk.docket.advance(NOW + 1e6)
    assert desk.sent() == [("save", 3600)]


def test_an_event_that_is_taken_back_stops_nothing() -> None:
    desk = Desk()
    desk.docket.update("e", [ProviderNotice("azure", "reboot", "r", NOW + 900)], NOW)
    desk.docket.update("other", [], NOW + 1)
    desk.docket.update("e", [], NOW + 60)
    desk.docket.advance(NOW + 900)
    assert [action for action, _ in desk.sent()] == ["save"]
    assert desk.lines[-1] == "notice from azure: reboot is no longer announced"


def test_an_event_may_move_and_two_readings_of_one_time_are_no_move() -> None:
    desk = Desk()
    desk.docket.update("e", [ProviderNotice("azure", "redeploy", "r", NOW + 600)], NOW)
    desk.docket.update("e", [ProviderNotice("azure", "redeploy", "r", NOW + 601.5)], NOW + 1)
    assert len(desk.lines) == 1
    desk.docket.update("e", [ProviderNotice("azure", "redeploy", "r", NOW + 3_000)], NOW + 2)
    desk.docket.advance(NOW + 700)
    assert [action for action, _ in desk.sent()] == ["save"]
    desk.docket.update("e", [ProviderNotice("azure", "redeploy", "r", NOW + 750)], NOW + 701)
    assert [action for action, _ in desk.sent()] == ["save", "stop"]
    desk.docket.update("e", [ProviderNotice("azure", "redeploy", "r", NOW + 702)], NOW + 702)  # the event has begun
    assert desk.sent()[1:] == [("stop", 740), ("stop", 712)], "the earlier one counts; it leaves what may be left"


def test_what_a_provider_says_stays_on_one_line() -> None:
    desk = Desk()
    desk.docket.update("e", [ProviderNotice("azure", "reboot", "r", NOW + 60, "azure (a\nb\r\x1b " + "x" * 900)], NOW)
    assert len(desk.lines[0]) < 300 and desk.lines[0].isprintable()
    assert len(desk.given[0].reason) <= 200


def test_an_order_leaves_the_writer_its_time_but_no_more_than_half() -> None:
    order = Order("preempted", "preempt", "test", deadline=130, seen=100)
    assert order.kill_at(write_s=10) == 120
    assert order.kill_at(write_s=300) == 115


# --- orders and the program's view ---


def test_a_stop_silences_saves_and_only_stops_expire() -> None:
    orders = Orders(lambda: None)
    orders.add(save := Order("preempted", "maintenance", "later", NOW + 10, action="save"))
    assert (orders.newest_save, orders.next_to_expire, orders.deciding) == (save, None, None)
    orders.add(stop := Order("preempted", "maintenance", "now", NOW + 20))
    assert (orders.newest_save, orders.next_to_expire, orders.deciding) == (None, stop, stop)


def test_the_programs_notice_has_its_action_and_a_new_id(tmp_path: Path) -> None:
    seen = []
    for action in ("save", "stop"):
        order = Order("preempted", "maintenance", "x", time.monotonic() + 600, action=action)
        write_notice(tmp_path / "notice.json", order)
        seen.append(json.loads((tmp_path / "notice.json").read_text()))
    assert [(notice["action"], notice["reason"]) for notice in seen] == [
        ("save", "maintenance"),
        ("stop", "maintenance"),
    ]
    assert seen[0]["id"] != seen[1]["id"]
    assert 400 < seen[0]["deadline"] - time.time() < 601


def test_signals() -> None:
    orders = Orders(lambda: None)
    signals = SignalOrders(orders)
    signals.take([signal.SIGUSR1, signal.SIGUSR1], NOW)
    assert orders.next_to_expire is not None and orders.next_to_expire.deadline == NOW + 55
    signals.take([signal.SIGTERM], NOW + 40)
    assert orders.next_to_expire.deadline == NOW + 55, "a warning, then the end: no hurry beyond the first word"
    signals.take([signal.SIGINT], NOW + 41)
    assert orders.next_to_expire.deadline == NOW + 41, "asked twice: now"


# --- times ---


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("21 Jan 2019 09:00:43 GMT", 1_548_061_243),  # AWS, scheduled events
        ("2017-09-18T08:22:00Z", 1_505_722_920),  # AWS, Spot
        ("Mon, 19 Sep 2016 18:29:47 GMT", 1_474_309_787),  # Azure
        ("2024-10-01T08:00:00-07:00", 1_727_794_800),  # Google
        ("2024-10-01T08:00:00.123456789Z", pytest.approx(1_727_769_600.123456)),
        ("2024-10-01T08:00:00", 1_727_769_600),
        ("", None),
        ("soon", None),
        ("0001-01-01T00:00:00+23:59", None),
        (None, None),
        (17, None),
    ],
)
def test_times_as_the_clouds_write_them(text: object, epoch: object) -> None:
    assert epoch_of(text) == epoch


@pytest.mark.parametrize("off", [-3_600, 0, 3_600])
def test_a_time_counts_by_the_servers_clock(off: int) -> None:
    assert reply("", date=WALL - off).when(WALL - off + 120) == NOW + 120
    assert reply("", date=WALL - off).clock_error == off


def test_without_a_date_a_time_that_cannot_be_is_no_time() -> None:
    assert reply("", date=None).when(WALL + 100, at_most_s=180) == NOW + 100
    assert reply("", date=None).when(WALL + 3_700, at_most_s=180) is None
    assert reply("", date=None).when(WALL - 1, at_most_s=180) is None


# --- what the clouds say ---


def moment(epoch: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


@pytest.mark.parametrize(
    ("action", "kind", "starts"),
    [
        ("terminate", "spot-terminate", NOW + 120),
        ("stop", "spot-stop", NOW + 120),
        ("hibernate", "spot-hibernate", None),
    ],
)
def test_aws_spot(action: str, kind: str, starts: float | None) -> None:
    [notice] = aws.spot_action(reply({"action": action, "time": moment(WALL + 120)}))
    assert (notice.kind, notice.starts) == (kind, starts)
    assert policy_of("aws", kind).action == "stop"


def test_aws_scheduled_events() -> None:
    # The event of the EC2 user guide's example, with shifted times.
    event = {
        "NotBefore": time.strftime("%d %b %Y %H:%M:%S GMT", time.gmtime(WALL + 86_400)),
        "Code": "system-reboot",
        "Description": "scheduled reboot",
        "EventId": "instance-event-0d59937288b749b32",
        "NotAfter": "21 Jan 2029 09:17:23 GMT",
        "State": "active",
    }
    over = {**event, "EventId": "instance-event-2", "State": "completed", "Description": "[Completed] scheduled reboot"}
    assert aws.scheduled_events(reply([event, over, "rubbish"])) == [
        ProviderNotice("aws", "system-reboot", "instance-event-0d59937288b749b32", NOW + 86_400)
    ]
    assert aws.scheduled_events(reply([])) == []


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        ("InService", []),
        ("Standby", []),
        ("Detached", []),
        ("Warmed:Running", []),
        ("Terminated", ["lifecycle-terminated"]),
        ("Warmed:Stopped", ["lifecycle-warmed"]),
        ("Warmed:Terminated", ["lifecycle-warmed"]),
    ],
)
def test_aws_lifecycle_state(state: str, kinds: list[str]) -> None:
    assert [notice.kind for notice in aws.lifecycle_state(reply(state))] == kinds


@pytest.mark.parametrize(
    ("value", "has_gpu", "restarts", "kinds"),
    [
        ("NONE", True, True, []),
        ("MIGRATE_ON_HOST_MAINTENANCE", False, True, ["migrate-on-host-maintenance"]),
        ("TERMINATE_ON_HOST_MAINTENANCE", True, False, ["terminate-on-host-maintenance"]),
        ("TERMINATE_ON_HOST_MAINTENANCE", False, False, ["terminate-on-host-maintenance-without-gpu"]),
        ("TERMINATE_ON_HOST_MAINTENANCE", True, True, ["terminate-on-host-maintenance-then-restart"]),
        ("TERMINATE_ON_HOST_MAINTENANCE", False, True, ["terminate-on-host-maintenance-without-gpu-then-restart"]),
    ],
)
def test_gcp_maintenance_event(value: str, has_gpu: bool, restarts: bool, kinds: list[str]) -> None:
    notices = gcp.maintenance_event(reply(value), has_gpu=has_gpu, is_restarted=lambda: restarts)
    assert [notice.kind for notice in notices] == kinds
    assert all(policy_of("gcp", kind).source != "unknown" for kind in kinds)


def upcoming(starts: float, status: str = "PENDING") -> dict[str, Any]:
    return {
        "can_reschedule": "false",
        "latest_window_start_time": moment(starts),
        "maintenance_reasons": ["PLANNED_UPDATE"],
        "maintenance_status": status,
        "type": "SCHEDULED",
        "window_start_time": moment(starts),
        "window_end_time": moment(starts + 14_400),
    }


def camel(said: dict[str, Any]) -> dict[str, Any]:
    return {
        "".join(part.title() if i else part for i, part in enumerate(key.split("_"))): value
        for key, value in said.items()
    }


upcoming_notices = partial(gcp.upcoming_maintenance, is_restarted=lambda: False)


@pytest.mark.parametrize("spell", [dict, camel], ids=["snake", "camel"])
def test_gcp_upcoming_maintenance(spell: Any) -> None:
    [notice] = upcoming_notices(reply(spell(upcoming(WALL + 86_400))))
    assert (notice.kind, notice.starts) == ("upcoming-maintenance", NOW + 86_400)
    assert notice.detail == "gcp (PLANNED_UPDATE)"


def test_gcp_a_machine_that_is_restarted_trains_on_until_its_turn_comes() -> None:
    """It stops two minutes before the hour of `maintenance-event` is over, and the event does not count as a
    preemption."""
    desk = Desk()
    window = gcp.upcoming_maintenance(reply(upcoming(WALL + 600)), is_restarted=lambda: True)
    desk.docket.update("upcoming", window, NOW)
    desk.docket.advance(NOW + 900)
    assert [action for action, _ in desk.sent()] == ["save"]
    event = gcp.maintenance_event(reply("TERMINATE_ON_HOST_MAINTENANCE"), has_gpu=True, is_restarted=lambda: True)
    desk.docket.update("event", event, NOW + 1_000)
    desk.docket.advance(NOW + 1_000 + 3_600 - 121)
    assert "stop" not in [action for action, _ in desk.sent()]
    desk.docket.advance(NOW + 1_000 + 3_600 - 119)
    assert desk.sent()[-1] == ("stop", 1_000 + 3_600 - 10)
    assert desk.given[-1].returns
    elsewhere = {(policy.cloud, policy.kind) for policy in POLICIES if policy.returns and policy.cloud != "gcp"}
    assert elsewhere == {("azure", "reboot"), ("azure", "redeploy")}


def test_what_ends_the_node_for_good_goes_before_what_it_comes_back_from() -> None:
    orders = Orders(lambda: None)
    back = Order("preempted", "maintenance", "host maintenance", NOW, returns=True)
    down = Order("preempted", "terminate", "the machine is shut down", NOW)
    cancelled = Order("stopped", "cancel", "cancelled", NOW)
    orders.add(back)
    assert orders.deciding is back
    orders.add(down)
    assert orders.deciding is down
    orders.add(Order("preempted", "preempt", "spot", NOW))
    assert orders.deciding is down, "the first of those"
    orders.add(cancelled)
    assert orders.deciding is cancelled


@pytest.mark.parametrize("said", [upcoming(WALL - 60), upcoming(WALL + 60, "ONGOING")], ids=["open", "ongoing"])
def test_gcp_an_open_window_stops_nothing(said: dict[str, Any]) -> None:
    """The machine may already have been restarted in it; `maintenance-event` announces the actual restart."""
    desk = Desk()
    desk.docket.update("u", upcoming_notices(reply(said)), NOW)
    desk.docket.advance(NOW + 1e6)
    assert [action for action, _ in desk.sent()] == ["save"]


@pytest.mark.parametrize("body", ["NONE", '"NONE"', "{}", ""])
def test_gcp_nothing_upcoming(body: str) -> None:
    assert upcoming_notices(reply(body)) == []


def test_rubbish_in_an_answer_is_an_error_that_is_dealt_with() -> None:
    for read in (aws.spot_action, aws.rebalance, aws.scheduled_events, upcoming_notices):
        for body in ("x", "17", "null", '"text"', "[" * 100_000):
            with pytest.raises(MetadataError):
                read(reply(body))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[::1", "http://h:x", "https://169.254.169.254"])
def test_an_impossible_address_is_said(url: str) -> None:
    with pytest.raises(MetadataError, match="address"):
        MetadataServer(url, lambda _text: None)


def test_an_agent_without_a_cloud_does_not_load_http() -> None:
    program = "import sys, cloudgpu.runtime.agent; print('http.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout == "False\n"


def test_addresses_come_from_the_vendors_variables() -> None:
    def name(look: Any) -> str:
        server = getattr(look, "_server", None) or look.imds._server
        return str(server.name)

    def say(_text: str) -> None: ...

    assert name(aws.looks({}, say)[0]) == name(gcp.looks({}, say)[0]) == "169.254.169.254"
    assert name(azure.looks({}, say)[0]) == "169.254.169.254"
    assert name(aws.looks({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}, say)[0]) == "[fd00:ec2::254]"
    assert name(aws.looks({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://a:1/imds/x/"}, say)[0]) == "a:1"
    assert name(gcp.looks({"GCE_METADATA_HOST": "b:2"}, say)[0]) == "b:2"
    assert name(azure.looks({"CLOUDGPU_AZURE_METADATA": "http://c:3"}, say)[0]) == "c:3"
    assert aws.looks({"AWS_EC2_METADATA_DISABLED": "true"}, say) == []
