"""The stand-in's only account: settings of tests, state that moto does not keep, and running machines."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..faults import Call, Fault, Ledger, Rule
from ..machine import Ending, Machine
from ..tls import trusting
from . import moto_side, spot
from .answers import Answer
from .capacity import Capacity
from .imds import InstanceMetadata
from .reservations import Reservations
from .throttling import Throttling
from .tokens import Tokens

GONE = ("terminated", "shutting-down")


class Account:
    """Account state. `boot`: whether launched machines run their user data. A Control can call the methods named in
    VERBS."""

    def __init__(self, *, boot: bool, url: str = "") -> None:
        self.boot, self.url = boot, url
        self.certificate: Path | None = None
        """Certificate of the server at `url`; None: no TLS."""
        self.ledger = Ledger()
        self.lock = threading.RLock()
        """Serializes calls, except those of S3, since moto is not thread-safe."""
        self.internally: Callable[[Call], Answer]
        """Performs a call between AWS services; set by App."""
        self.tend: Callable[[str], None] = lambda _region: None
        """Reconciles a region's Auto Scaling groups; set by App."""
        self.over = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="cloudgpu-aws-")
        self._forget()

    def _forget(self) -> None:
        self.capacity = Capacity()
        self.tokens = Tokens()
        self.throttling = Throttling()
        self.reservations = Reservations()
        self.machines: dict[str, Ec2Machine] = {}
        self.launched: dict[str, float] = {}
        """Instance id -> monotonic time of its launch."""
        self.gone: dict[str, float] = {}
        """Instance id -> monotonic time of its end."""
        self.groups: dict[str, dict[str, Any]] = {}
        """Placement groups by region/name."""
        self.templates: dict[tuple[str, str, int], dict[str, str]] = {}
        """Launch template data by region, id and version, as parameters of RunInstances."""
        self.activities: dict[tuple[str, str], list[dict[str, str]]] = {}
        """Activities of Auto Scaling groups by region and name, newest first."""
        self.prices: dict[tuple[str, str], Decimal] = {}
        """(machine type, zone or region) -> US dollars per hour."""
        self.enforcing = False
        self.others: dict[str, str] = {}
        """Access key -> account, for keys of accounts other than the one with machines."""
        self.revoked: set[str] = set()
        """Expired access keys."""
        self.launch_failures: list[LaunchFailure] = []
        """Failures at launch for coming instances."""
        self.visibility_lag_s = self.profile_lag_s = self.stopping_s = 0.0
        self._timers: list[threading.Timer] = []
        self._seeded: set[str] = set()

    def close(self) -> None:
        """End all machines."""
        self.over.set()
        self.reset()
        self._folder.cleanup()

    def seed(self, region: str) -> None:
        """Add the images to a region on its first use."""
        if region and region not in self._seeded:
            self._seeded.add(region)
            moto_side.seed(region)

    # -- verbs of the control

    def fail(self, action: str, fault: dict[str, Any], **rule: Any) -> None:
        self.ledger.add(Rule(action, Fault(**fault), **rule))

    def heal(self) -> None:
        self.ledger.clear(calls=False)

    def calls(self) -> list[dict[str, Any]]:
        return self.ledger.calls()

    def forget(self) -> None:
        self.ledger.clear(rules=False)

    def reset(self) -> None:
        with self.lock:
            for timer in self._timers:
                timer.cancel()
            machines = list(self.machines.values())
            self.ledger.clear()
            moto_side.reset()
            self._forget()
        for machine in machines:
            machine.dispose()
            shutil.rmtree(machine.root, ignore_errors=True)

    def set_capacity(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        self.capacity.set_places(machine_type, zone, market, places)

    def set_quota(self, region: str, code: str, vcpus: float) -> None:
        self.capacity.set_quota(region, code, vcpus)

    def set_price(self, machine_type: str, place: str, amount: str) -> None:
        self.prices[machine_type, place] = Decimal(amount)

    def reserve(self, machine_type: str, zone: str, places: int, start_s: float, end_s: float | None) -> str:
        now = time.time()
        end = None if end_s is None else now + end_s
        return self.reservations.make(machine_type, zone, places, start=now + start_s, end=end)

    def extend_block(self, reservation: str, end_s: float) -> None:
        self.reservations.extend(reservation, time.time() + end_s)

    def set_lag(self, seconds: float, profiles: float) -> None:
        self.visibility_lag_s, self.profile_lag_s = seconds, profiles

    def set_stopping(self, seconds: float) -> None:
        self.stopping_s = seconds

    def throttle(self, on: bool) -> None:
        self.throttling.on = on

    def fail_launches(self, code: str, message: str, zone: str, times: int, after_s: float) -> None:
        self.launch_failures.append(LaunchFailure(code, message, zone, times, after_s))

    def enforce(self, on: bool) -> None:
        self.enforcing = on
        moto_side.enforce_policies(on=on)

    def assign_key(self, key: str, account_id: str) -> None:
        self.others[key] = account_id

    def revoke(self, key: str) -> None:
        self.revoked.add(key)

    def interrupt(self, instance_id: str, seconds: float) -> None:
        """Send a Spot interruption notice; the instance is terminated after `seconds`."""
        with self.lock:
            instance = self.instance(instance_id)
            request = spot.request_of(instance)
            if request is None or instance.state in GONE:
                raise ValueError(f"{instance_id} is no Spot instance that runs")
            request.set_status(spot.MARKED)
            machine = self.machines.get(instance_id)
        if machine is not None:
            machine.imds.interrupt(seconds)
        self.later(seconds, lambda: self._reclaim(instance_id))

    def recommend_rebalance(self, instance_id: str) -> None:
        said = {"noticeTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.machines[instance_id].imds.announce("events/recommendations/rebalance", said)

    def schedule_event(self, instance_id: str, event: dict[str, Any]) -> None:
        self.machines[instance_id].imds.announce("events/maintenance/scheduled", [event])

    def reboot(self, instance_id: str) -> None:
        """Simulate a host failure: all processes end at once, and the machine boots again with its disk."""
        machine = self.machines[instance_id]
        machine.cut_power()
        machine.power_on()

    def run_delayed(self) -> None:
        """Run all delayed actions now, in the order in which they were scheduled."""
        with self.lock:
            timers, self._timers = self._timers, []
            for timer in timers:
                if timer.is_alive():
                    timer.cancel()
                    timer.function()

    def forget_ended(self) -> None:
        """Forget terminated instances, as EC2 does after about an hour."""
        with self.lock:
            for region in moto_side.ec2_regions():
                moto_side.forget_instances(region, {one.id for one in self._all() if one.state == "terminated"})

    def crash(self, instance_id: str) -> None:
        """Simulate a hardware failure: the instance ends without notice."""
        self.end(instance_id, "Server.InternalError", "Server.InternalError: Internal error")

    def instances(self) -> list[dict[str, Any]]:
        """Return the state of all instances ever launched."""
        with self.lock:
            return [self._told(instance) for instance in self._all()]

    # -- used by the API's handlers

    def instance(self, instance_id: str) -> Any:
        for instance in self._all():
            if instance.id == instance_id:
                return instance
        raise ValueError(f"there is no instance {instance_id}")

    def running(self, region: str) -> list[Any]:
        """Return the instances that use capacity and quotas."""
        return [instance for instance in self._all() if instance.region_name == region and instance.state not in GONE]

    def is_young(self, instance_id: str) -> bool:
        """Return whether the instance is too new to be visible everywhere (eventual consistency)."""
        return time.monotonic() - self.launched.get(instance_id, float("-inf")) < self.visibility_lag_s

    def start(self, instance: Any) -> None:
        """Start a new instance: boot it, or let it fail if a LaunchFailure applies."""
        self.launched[instance.id] = time.monotonic()
        doom = next(
            (one for one in self.launch_failures if one.times and one.zone in ("", instance.availability_zone)), None
        )
        if doom is not None:
            doom.times -= 1
            _set_state(instance, "pending", 0)
            self.later(doom.after_s, lambda: self.end(instance.id, doom.code, f"{doom.code}: {doom.message}"))
            return
        if not self.boot:
            return
        root = Path(self._folder.name) / instance.id
        root.mkdir()
        machine = self.machines[instance.id] = Ec2Machine(instance, root, self._network(), self._ended_itself)
        machine.power_on()

    def end(self, instance_id: str, code: str, message: str, spot_status: str = spot.BY_USER) -> None:
        """Terminate an instance for this reason. It stays shutting-down for `stopping_s` seconds."""
        with self.lock:
            instance = self.instance(instance_id)
            if instance.state not in GONE:
                instance.terminate()
            self.ended(instance, code, message, spot_status)

    def ended(self, instance: Any, code: str, message: str, spot_status: str = spot.BY_USER) -> None:
        """Apply the effects of a termination that moto has performed."""
        self.gone.setdefault(instance.id, time.monotonic())
        instance.state_reason.code, instance.state_reason.message = code, message
        request = spot.request_of(instance)
        if request is not None and request.state == "active":
            request.set_status(spot_status, "closed")
        if self.stopping_s:
            _set_state(instance, "shutting-down", 32)
            self.later(self.stopping_s, lambda: self._stopped(instance))
        if moto_side.scaling(instance.region_name).autoscaling_groups:
            self.later(0.0, lambda: self.tend(instance.region_name))
        machine = self.machines.get(instance.id)
        if machine is not None:
            machine.dispose()

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Run a function after a delay, unless the account is reset before."""
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    # -- helpers

    def _all(self) -> Iterator[Any]:
        for region in moto_side.ec2_regions():
            yield from moto_side.ec2(region).all_instances()

    def _told(self, instance: Any) -> dict[str, Any]:
        machine = self.machines.get(instance.id)
        return dataclasses.asdict(
            InstanceState(
                instance_id=instance.id,
                machine_type=instance.instance_type,
                region=instance.region_name,
                zone=instance.availability_zone,
                market="spot" if instance.lifecycle == "spot" else "on-demand",
                state=instance.state,
                reason=instance.state_reason.code or "",
                tags={tag["key"]: tag["value"] for tag in instance.get_tags()},
                console=machine.console if machine else "",
                trouble=list(machine.trouble) if machine else [],
                keys=list(machine.imds.keys) if machine else [],
                root=str(machine.root) if machine else "",
                imds=machine.imds.url if machine else "",
                launched=self.launched[instance.id],
                gone=self.gone.get(instance.id),
            )
        )

    def _reclaim(self, instance_id: str) -> None:
        with self.lock:
            if self.instance(instance_id).state not in GONE:
                message = "Server.SpotInstanceTermination: Spot instance termination"
                self.end(instance_id, "Server.SpotInstanceTermination", message, spot.NO_CAPACITY)

    def _network(self) -> dict[str, str]:
        """Return the environment that replaces AWS's endpoints and the image's trusted certificates."""
        return {"AWS_ENDPOINT_URL": self.url, **trusting(self.certificate)}

    def _ended_itself(self, instance_id: str, ending: Ending) -> None:
        with self.lock:
            machine, instance = self.machines.get(instance_id), self.instance(instance_id)
            if machine is None or instance.state in GONE:
                return
            if ending == "reboot":
                machine.power_on()
            elif instance.instance_initiated_shutdown_behavior == "terminate":
                message = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
                self.end(instance_id, "Client.InstanceInitiatedShutdown", message)
            else:
                instance.stop()

    def _stopped(self, instance: Any) -> None:
        _set_state(instance, "terminated", 48)
        self.tend(instance.region_name)


class Ec2Machine(Machine):
    """An EC2 instance's machine, with its metadata service."""

    def __init__(
        self, instance: Any, root: Path, network: Mapping[str, str], ended: Callable[[str, Ending], None]
    ) -> None:
        self.imds = InstanceMetadata(instance)
        # Replaces 169.254.169.254.
        environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.url, **network}
        user_data = instance.user_data.decode() if instance.user_data else ""
        super().__init__(root, user_data, environ, lambda ending: ended(instance.id, ending))
        self.imds.__enter__()

    def dispose(self) -> None:
        super().dispose()
        self.imds.__exit__(None, None, None)


@dataclasses.dataclass(frozen=True)
class InstanceState:
    """State of an instance, as returned by Control.instances()."""

    instance_id: str
    machine_type: str
    region: str
    zone: str
    market: str
    state: str
    reason: str
    """Code of its StateReason."""
    tags: dict[str, str]
    console: str
    """Console output; empty where machines do not boot."""
    trouble: list[str]
    """Problems that would also occur on a real machine: an invalid user data or unit file, or a failed command of user
    data."""
    keys: list[str]
    """Access keys that its metadata service issued."""
    root: str
    """Folder of its disk."""
    imds: str
    """URL of its metadata service."""
    launched: float
    """Monotonic time of its launch, by the stand-in's clock."""
    gone: float | None
    """Monotonic time of its end; None: it has not ended."""

    @property
    def running(self) -> bool:
        return self.state not in GONE


@dataclasses.dataclass
class LaunchFailure:
    """Failure at launch: instances stay `pending`, then are terminated. Source: EC2 user guide, "Instance terminates
    immediately"."""

    code: str
    """Code of the StateReason."""
    message: str
    zone: str
    """AZ name; "": any."""
    times: int
    after_s: float


# fmt: off
VERBS = frozenset({
    "fail", "heal", "calls", "forget", "reset", "set_capacity", "set_quota", "set_price", "set_lag", "set_stopping",
    "fail_launches", "throttle", "enforce", "assign_key", "revoke", "reserve", "extend_block", "interrupt",
    "recommend_rebalance", "schedule_event", "reboot", "run_delayed", "crash", "forget_ended", "instances",
})
# fmt: on


def _set_state(instance: Any, name: str, code: int) -> None:
    instance._state.name, instance._state.code = name, code
