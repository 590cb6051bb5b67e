"""A test's hold on the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..faults import Control
from .store import NAME, Store


class GcsControl(Control):
    """Of Cloud Storage only; made of the URL of the whole stand-in."""

    def make_bucket(self, name: str, location: str = "US", *, public: bool = False) -> None:
        """`public`: callers without a login, as clients of an emulator are, may do everything in it."""
        self.do(f"{NAME}/make_bucket", name=name, location=location, public=public)

    def objects(self, bucket: str) -> dict[str, int]:
        """Name -> generation."""
        found: dict[str, int] = self.do(f"{NAME}/objects", bucket=bucket)
        return found

    def uploads(self) -> int:
        """How many are begun and neither complete nor aborted."""
        return int(self.do(f"{NAME}/uploads"))

    def limit_updates(self, seconds: float) -> None:
        """An object that was changed less long ago cannot be changed: as Cloud Storage has it, by 1 second."""
        self.do(f"{NAME}/limit_updates", seconds=seconds)

    def blind(self, *accounts: str) -> None:
        """They may not list: what is not there is forbidden to them."""
        self.do(f"{NAME}/blind", accounts=accounts)


def verbs(store: Store) -> Mapping[str, Callable[..., Any]]:
    """What the control asks for."""

    def objects(bucket: str) -> dict[str, int]:
        with store.lock:
            return {name: thing.generation for name, thing in store.bucket(bucket).items()}

    def limit_updates(seconds: float) -> None:
        store.update_limit_s = seconds

    def blind(accounts: list[str]) -> None:
        store.blind = set(accounts)

    return {
        "make_bucket": store.make_bucket,
        "objects": objects,
        "uploads": lambda: sum(upload.done is None for upload in store.uploads.values()),
        "limit_updates": limit_updates,
        "blind": blind,
    }
