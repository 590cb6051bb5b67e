"""Expected verdict of `run` on each program: see docs/guides/attach.md."""

from __future__ import annotations

_OUTSIDE = "outside of a `for` loop over a DataLoader"

REFUSED: dict[str, str] = {
    "cycle_loader": "come through a generator function",
    "dqn": _OUTSIDE,
    "generator_data": _OUTSIDE,
    "nano_lm": _OUTSIDE,
    "next_batches": "cannot be resumed exactly",
    "no_dataloader": _OUTSIDE,
}
"""Programs that are refused at their start, with words of the reason. All others end as if they had not been killed."""

TELLING = (
    "best_state",
    "ema_class",
    "imagenet",
    "own_resume",
    "project",
    "slots_state",
    "unfreeze",
    "next_batches",
)
"""Programs of the ordinary tests; the long mode has all of them."""
