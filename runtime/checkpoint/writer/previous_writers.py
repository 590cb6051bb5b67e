"""What earlier processes of a rank have left to their writers, and a new one waits for."""

from __future__ import annotations

import os
import time

from ..store import CheckpointStore
from .link import ADDRESS
from .protocol import own_addresses, wait_until_durable


def finish_earlier(store: CheckpointStore, rank: int, timeout_s: float, *, but: bytes | None = None) -> bool:
    """Wait until what earlier processes of this rank had staged is durable or has failed; False: time ran out.

    Comes before the store's claim() and clean(), to which what is still being written is a dead attempt's. Asked are
    the node's writer, and those of earlier processes on this machine, of the same user and network namespace; `but`:
    the address of our own.
    """
    end = time.monotonic() + timeout_s
    of = subject(store, rank)
    node = os.environ.get(ADDRESS)
    addresses: list[str | bytes] = [*([node] if node else []), *own_addresses(*of)]
    return all(wait_until_durable(address, end - time.monotonic(), of) for address in addresses if address != but)


def subject(store: CheckpointStore, rank: int) -> tuple[str, str, int]:
    """What writers are told apart by: URL, prefix, rank."""
    return store.job_dir.url, store.prefix, rank
