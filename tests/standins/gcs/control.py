"""Test client of the store, and the verbs that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..faults import Control
from .store import NAME, Store


class GcsControl(Control):
    """Control of Cloud Storage only, by the URL of the whole stand-in."""

    def make_bucket(self, name: str, location: str = "US", *, public: bool = False) -> None:
        """Create a bucket. `public`: callers without a login, such as clients of an emulator, have full access."""
        self.do(f"{NAME}/make_bucket", name=name, location=location, public=public)

    def objects(self, bucket: str) -> dict[str, int]:
        """Return name -> generation of a bucket's objects."""
        found: dict[str, int] = self.do(f"{NAME}/objects", bucket=bucket)
        return found

    def uploads(self) -> int:
        """Return the number of unfinished uploads."""
        return int(self.do(f"{NAME}/uploads"))

    def limit_updates(self, seconds: float) -> None:
        """Refuse to change an object that was changed within `seconds`; Cloud Storage's limit is 1 second."""
        self.do(f"{NAME}/limit_updates", seconds=seconds)

    def blind(self, *accounts: str) -> None:
        """Forbid these accounts to list, so that a missing object is reported as forbidden to them."""
        self.do(f"{NAME}/blind", accounts=accounts)


def verbs(store: Store) -> Mapping[str, Callable[..., Any]]:
    """Return the control's verbs for a store."""

    def objects(bucket: str) -> dict[str, int]:
        with store.lock:
            return {name: thing.generation for name, thing in store.bucket(bucket).items()}

    def limit_updates(seconds: float) -> None:
        store.update_limit_s = seconds

    def blind(accounts: list[str]) -> None:
        store.no_list_accounts = set(accounts)

    return {
        "make_bucket": store.make_bucket,
        "objects": objects,
        "uploads": lambda: sum(upload.done is None for upload in store.uploads.values()),
        "limit_updates": limit_updates,
        "blind": blind,
    }
