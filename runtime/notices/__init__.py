"""Why a node is to save or to end, and by when. See docs/notices.md."""

from .job_dir import Watcher
from .orders import Order, Orders, write_notice
from .signals import KINDS, SignalOrders

__all__ = ["KINDS", "Order", "Orders", "SignalOrders", "Watcher", "write_notice"]
