"""Deferred restore of objects that a framework creates only after the checkpoint has been read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..checkpoint.errors import CheckpointError


class DeferredState:
    """Placeholder for an object that may not exist yet, which keeps the object's loaded state until `apply()`.

    what  name of the object in messages: "model", "optimizer"
    find  returns the object; None if the training has none
    """

    def __init__(self, what: str, find: Callable[[], Any]) -> None:
        self._what, self._find = what, find
        self._loaded: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None:
            return dict(self._loaded)  # not applied yet, so still unchanged
        found = self._find()
        state: dict[str, Any] = {} if found is None else found.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state

    def apply(self) -> None:
        """Load the kept state into the object. Raises CheckpointError if it does not fit, or if there is no object."""
        loaded, self._loaded = self._loaded, None
        found = self._find()
        if loaded is None or (not loaded and found is None):
            return
        if found is None:
            raise misfit(self._what, "there was one, now there is none")
        try:
            found.load_state_dict(loaded)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise misfit(self._what, " ".join(str(error).split())) from error


def misfit(what: str, how: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint does not fit the {what}: {how}. Use what it was saved with, or give another folder to begin "
        "anew"
    )
