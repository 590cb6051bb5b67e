"""Watch the notices of the cloud in which this machine runs. Only a cloud's machine imports the HTTP client."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .job_dir import NodeDir
from .orders import Orders
from .policy import CLOUDS, policy_of
from .scheduled_notices import NoticeSchedule, ProviderNotice

if TYPE_CHECKING:
    from .acknowledge import Acknowledger
    from .metadata import Look
    from .watch import CloudWatcher


class CloudNotices:
    """Watcher of a cloud's notices, active from its construction. Errors are logged by `say`, never raised.

    `cloud`: one of CLOUDS, or "none".
    """

    def __init__(
        self,
        cloud: str,
        own: NodeDir,
        orders: Orders,
        say: Callable[[str], None],
        *,
        environ: Mapping[str, str],
        capacity_block_end: float | None = None,
        of_fleet: bool = False,
    ) -> None:
        """Begin to watch. `capacity_block_end` is in epoch seconds. `of_fleet`: the machine belongs to a fleet.

        After the node's end, a fleet's machine must still release the node in the fleet dir; otherwise other machines
        would wait until its heartbeat times out. Therefore it does not acknowledge events that terminate it.
        """
        self._own, self._say, self._environ, self._of_fleet = own, say, environ, of_fleet
        self._acknowledger: Acknowledger | None = None
        self._watcher: CloudWatcher | None = None
        if cloud in CLOUDS:
            self._watch(cloud, orders, capacity_block_end)
        elif cloud != "none":
            say(f"notices are not watched: {cloud!r} is none of {', '.join(CLOUDS)}")

    def stop(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.stop()

    def saved(self) -> None:
        """Allow the acknowledgement of a restart, since the program has saved and ended and the node waits for it."""
        if self._acknowledger is not None:
            self._acknowledger.saved()

    def finish(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds for pending acknowledgements, after the node's result."""
        if self._acknowledger is not None:
            self._acknowledger.finish(limit_s)

    def _watch(self, cloud: str, orders: Orders, capacity_block_end: float | None) -> None:
        from .metadata import MetadataError
        from .watch import CloudWatcher

        try:
            looks = self._looks(cloud, capacity_block_end)
        except MetadataError as error:
            self._say(f"notices of {cloud} are not watched: {error}")
        else:
            self._watcher = CloudWatcher(looks, NoticeSchedule(orders, self._say, self._on_stop), self._say)

    def _looks(self, cloud: str, capacity_block_end: float | None) -> list[Look]:
        from .acknowledge import Acknowledger, Events

        looks: list[Look] = importlib.import_module(f".{cloud}", __package__).looks(
            self._environ, self._say, capacity_block_end
        )
        events = next((one for one in looks if isinstance(one, Events)), None)
        if events is not None:
            self._acknowledger = Acknowledger(self._own, lambda: events.machine, events.acknowledge, self._say)
        return looks

    def _on_stop(self, notice: ProviderNotice, starts: float) -> None:
        policy = policy_of(notice.cloud, notice.kind)
        if self._acknowledger is not None and policy.acknowledged and (policy.returns or not self._of_fleet):
            self._acknowledger.begin(notice, starts)
