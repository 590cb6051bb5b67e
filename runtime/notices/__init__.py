"""Orders for a node to save or end, from providers' notices, signals and the job dir.

See docs/explanation/notices.md.
"""

from .clouds import CloudNotices
from .job_dir import NodeDir, Watcher
from .orders import Order, Orders, write_notice
from .policy import CLOUDS
from .signals import KINDS, SignalOrders

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
