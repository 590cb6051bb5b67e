"""Wait for the writers of earlier processes of a rank."""

from __future__ import annotations

import os
import time

from ..store import CheckpointStore
from .link import ADDRESS
from .protocol import own_addresses, wait_until_durable


def finish_earlier(store: CheckpointStore, rank: int, timeout_s: float, *, but: bytes | None = None) -> bool:
    """Wait until all saves staged by earlier processes of this rank are durable or have failed; False at the timeout.

    but  address of the writer that this process has started, which is excluded

    Call it before the store's claim() and clean(), which treat unfinished saves as abandoned. It waits for the node's
    writer and for writers that earlier processes of the same user and network namespace started on this machine.
    """
    end = time.monotonic() + timeout_s
    of = subject(store, rank)
    node = os.environ.get(ADDRESS)
    addresses: list[str | bytes] = [*([node] if node else []), *own_addresses(*of)]
    return all(wait_until_durable(address, end - time.monotonic(), of) for address in addresses if address != but)


def subject(store: CheckpointStore, rank: int) -> tuple[str, str, int]:
    """Return URL, prefix and rank, by which writers identify a rank of a training."""
    return store.job_dir.url, store.prefix, rank
