"""Why a node is to save or to end, and by when. See docs/notices.md."""

from .job_dir import Watcher
from .orders import Order, Orders, write_notice

__all__ = ["Order", "Orders", "Watcher", "write_notice"]
