"""One run of a program under `run`: what is watched, when is saved, how it goes on.

    live    it trains; before a batch of the training loader is asked for, a step is done if an optimizer has made one
    skip    a checkpoint was found: what it had gone through is gone through again with one batch each
    resume  the opening that was under way: everything is put back, and it goes on with its rest

Where it cannot be sure to resume rightly, nothing is saved, and it says so; where a checkpoint does not fit, the
program ends with 70 rather than train on from a wrong state.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..checkpoint import random_state
from ..checkpoint.errors import CheckpointError, logger
from .execute import Target
from .frames import Code, is_for_loop
from .imports import AfterImport
from .objects import Objects
from .openings import Counting, Mode, Opening, Openings
from .report import Report
from .silence import Silence
from .variables import Variables, generator_state, set_generator

if TYPE_CHECKING:
    from ..checkpoint.checkpointer import Checkpointer

_BETTER = "the program uses cloudgpu's Checkpointer itself, which does it better"


class Session:
    """Watches the program from its first line to its end. It is what the Checkpointer saves, as `program`."""

    def __init__(self, target: Target, *, folder: str | None = None, report: Path | None = None) -> None:
        self._target, self._folder = target, folder
        self._code = Code(target.folder)
        self._objects, self._variables = Objects(), Variables(self._code)
        self._openings = Openings(self, self._code)
        self._silence, self._counting = Silence(self._code), Counting()
        self._report = Report(report)
        self._checkpointer: Checkpointer | None = None
        self._off: str | None = None
        """Why nothing is saved."""
        self._loaded: Mapping[str, Any] | None = None
        """What is to be resumed, until it is."""
        self._sites: set[str] = set()
        """Where training loops are."""
        self._steps = 0
        """Of optimizers, since the last step boundary."""
        self._current: Opening | None = None
        """The training opening, while a save asks for the state."""

    def run(self, program: Callable[[], int]) -> int:
        AfterImport("torch", self._watch).install()
        self._counting.install()
        try:
            return program()
        finally:
            self._silence.end()
            if self._checkpointer is not None:
                self._checkpointer.end(finished=False)
            self._report.write()

    def _watch(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._objects.watch(torch)
        self._openings.watch(torch.utils.data.DataLoader)
        register_optimizer_step_post_hook(self._after_step)

    # What the program does

    def wants_openings(self) -> bool:
        """Whether openings are looked after; at the first one this finds out what there is to resume."""
        if self._off is None and self._checkpointer is None:
            self._set_up()
        return self._off is None and self._checkpointer is not None

    def mode_of(self, site: str, number: int) -> Mode:
        """How an opening is to be gone through. Ends the program if all of it is done."""
        if self._loaded is None:
            return "live"
        place = self._loaded["place"]
        if site in place["sites"]:
            self._variables.begin()
        if (site, number) == (place["site"], place["number"]):
            return "resume"
        if self._silence.on or (site in place["sites"] and number < place["counts"].get(site, 0)):
            self._silence.begin()
            return "skip"
        return "live"

    def sample(self, opening: Opening) -> Any:  # noqa: ANN401
        return self._openings.sample(opening)

    def before_batch(self, opening: Opening) -> None:
        """The program asks for the next batch: everything it does with the one before is done."""
        if self._off is not None or self._checkpointer is None or self._loaded is not None:
            return
        if not opening.given and opening.site not in self._sites:
            self._variables.begin()
        if not self._steps or opening.at_end or not self._is_training(opening):
            return
        if (reason := self._doubt(opening)) is not None:
            self._give_up(reason)
            return
        self._boundary(opening)

    def _after_step(self, optimizer: Any, *_: Any) -> None:  # noqa: ANN401
        if self._off is not None or self._silence.on:
            return
        self._objects.stepped.add(optimizer)
        self._steps += 1
        # The outermost of the loops under way: an inner one may be a validation, or belong to one step.
        training = next((one for one in self._openings.living() if one.advanced), None)
        if training is not None:
            training.trained = True
            self._sites.add(training.site)
        elif not self._sites and self._loaded is None and self._steps > 1:
            if self._uses_checkpointer():
                self._give_up(_BETTER, plain=True)
                return
            self._give_up("optimizers make steps outside of a loop over a DataLoader: there is no place to go on from")

    def _is_training(self, opening: Opening) -> bool:
        """A step boundary is before each batch of a training loop, and before the first of the next one."""
        if opening.trained:
            return True
        return (
            not opening.given and opening.site in self._sites and not any(o.advanced for o in self._openings.living())
        )

    def _doubt(self, opening: Opening) -> str | None:
        """Why the place could not be found again, if so."""
        if not is_for_loop(self._code.frames()):
            return (
                "batches are asked for by next(), not by a `for` loop over the DataLoader: its place is in a variable"
            )
        others = [one for one in self._openings.living() if one is not opening and one.advanced]
        if others:
            return f"two DataLoaders are read at the same time ({opening.site}; {others[0].site})"
        if self._report.open and (name := self._objects.sharded()) is not None:
            return f"the parameters of {name} are sharded over ranks: use the Checkpointer"
        return None

    # Saving

    def _boundary(self, opening: Opening) -> None:
        checkpointer = self._checkpointer
        if checkpointer is None:
            return
        self._current = opening
        try:
            checkpointer.begin()
            if self._report.open:
                self._tell(checkpointer)
            self._steps = 0
            for one in self._openings.living():
                one.advanced = False
            checkpointer.end_step()
        finally:
            self._current = None

    def state_dict(self) -> dict[str, Any]:
        """For the Checkpointer: all that is known of the program."""
        return {
            "arguments": sys.argv[1:],
            "objects": self._objects.state_dict(),
            "gradients": self._objects.gradients.state_dict(),
            "variables": self._variables.state_dict(),
            "generators": {name: generator_state(one) for name, one in self._variables.generators().items()},
            "place": self._place(self._current) if self._current is not None else None,
        }

    def _place(self, opening: Opening) -> dict[str, Any]:
        return {
            "site": opening.site,
            "number": opening.number,
            "counts": dict(self._openings.counts),
            "sites": sorted(self._sites),
            "position": opening.position.state_dict(),
            "at_epoch": opening.at_epoch,
            "now": random_state.capture(random_state.generators_of(opening.loader)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state

    # Resuming

    def resume(self, opening: Opening) -> None:
        """Put everything back, in the opening that was under way."""
        state, checkpointer = self._loaded, self._checkpointer
        if state is None or checkpointer is None:
            return
        place = state["place"]
        self._silence.end()
        self._openings.forget_samples()
        if not is_for_loop(self._code.frames()):
            raise CheckpointError("the loop over the DataLoader is not the one that was saved")
        self._objects.load_state_dict(state["objects"])
        self._objects.gradients.load_state_dict(state["gradients"])
        generators = random_state.generators_of(opening.loader)
        opening.at_epoch = place["at_epoch"]
        if not place["position"]["batch"]:
            random_state.restore(opening.at_epoch, generators)
        opening.position.load_state_dict(place["position"])
        opening.go_on_with(opening.open_epoch())
        self._variables.load_state_dict(state["variables"])
        self._restore_generators(state["generators"])
        random_state.restore(place["now"], generators)
        self._loaded, self._sites, self._steps = None, set(place["sites"]), 0
        self._counting.left_out = opening.position.batch
        self._counting.uninstall()
        self._current = opening
        try:
            self._tell(checkpointer)
            checkpointer.begin()
        finally:
            self._current = None

    def _restore_generators(self, saved: Mapping[str, Any]) -> None:
        found = self._variables.generators()
        if missing := sorted(saved.keys() - found.keys()):
            raise CheckpointError(f"the checkpoint has the random generators {', '.join(missing)}, the program has not")
        for name, state in saved.items():
            set_generator(found[name], state)

    # Beginning and end

    def _set_up(self) -> None:
        """Make the Checkpointer, which finds out what there is to resume."""
        if self._uses_checkpointer():
            self._give_up(_BETTER, plain=True)
            return
        torch: Any = sys.modules["torch"]
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not distributed:
            return  # what is gone through before belongs to the setting up
        from ..checkpoint.checkpointer import Checkpointer

        self._checkpointer = Checkpointer(program=self, folder=self._folder)
        if self._loaded is None:
            self._counting.uninstall()
        elif self._checkpointer.finished:
            self._check_finished()

    def _check_finished(self) -> None:
        if self._loaded is not None and self._loaded["arguments"] != sys.argv[1:]:
            raise CheckpointError(
                f"this training is finished, with the arguments {self._loaded['arguments']}; now they are "
                f"{sys.argv[1:]}: give another folder to train anew"
            )
        logger().info("the program has come to its end before: there is nothing left to do")
        raise SystemExit(0)

    def _uses_checkpointer(self) -> bool:
        """It has imported something of ours, or made a Checkpointer in a way of its own."""
        package = str(__package__).partition(".")[0]
        for _, variables in self._code.modules():
            for value in list(variables.values()):
                owner = getattr(value, "__module__", None) or getattr(value, "__name__", None)
                if isinstance(owner, str) and owner.partition(".")[0] == package:
                    return True
        from ..checkpoint.checkpointer import Checkpointer

        made = (one for one in gc.get_objects() if issubclass(type(one), Checkpointer))
        return any(one is not self._checkpointer for one in made)

    def _give_up(self, reason: str, *, plain: bool = False) -> None:
        """From now on the program is left alone. plain: it loses nothing by that."""
        self._off = reason
        self._counting.uninstall()
        self._silence.end()
        if self._checkpointer is not None:
            self._checkpointer.end(finished=False)
            self._checkpointer = None
        self._report.refuse(reason, plain=plain)

    def _tell(self, checkpointer: Checkpointer) -> None:
        self._report.tell(
            step=checkpointer.step,
            objects=self._objects.by_name(),
            variables=self._variables,
            opening=self._current,
            left_out=self._silence.left_out,
        )

    @contextmanager
    def own_iteration(self) -> Iterator[None]:
        self._openings.enter_own()
        try:
            yield
        finally:
            self._openings.leave_own()

    def end(self) -> None:
        """The program has come to its end by itself."""
        self._silence.end()
        if self._checkpointer is None or self._checkpointer.finished:
            return
        if self._loaded is not None:
            raise CheckpointError(
                f"the program has ended without coming to where it was when it was saved "
                f"({self._loaded['place']['site']}, opening {self._loaded['place']['number'] + 1}): it is not the same "
                "program, or what it does in an epoch depends on what it computed before"
            )
        self._checkpointer.end()
