"""Why a node is to save or to end, and by when. See docs/notices.md."""

from .acknowledge import NodeDir
from .job_dir import Watcher
from .orders import Order, Orders, write_notice
from .signals import KINDS, SignalOrders
from .watch import CLOUDS, CloudNotices

__all__ = [
    "CLOUDS",
    "KINDS",
    "CloudNotices",
    "NodeDir",
    "Order",
    "Orders",
    "SignalOrders",
    "Watcher",
    "write_notice",
]
