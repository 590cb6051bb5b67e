"""One execution of a program under `run`: hooks, step boundaries, saving and resuming.

A resumed program runs from its first line again. Its outer loops are fast-forwarded to the iterations of the
checkpoint, and all state is restored before the first training batch. A step boundary is the request for the training
loader's next batch after an optimizer step. A program that might not resume exactly is refused.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..checkpoint.data import random_state
from ..checkpoint.errors import EXIT_DONE, EXIT_NOTHING_SAVED, EXIT_STALE, EXIT_USER, CheckpointError, logger
from ..checkpoint.outcome import Outcome, OutcomeRecord
from ..checkpoint.rendezvous import find_world
from .program import loops
from .program.execute import Target
from .program.frame_inspection import Code
from .program.imports import AfterImport
from .program.liveness import dead_names, skips_by_number
from .program.loops import Loop, Loops, UnknownIterableError
from .program.rewrite import HOOK, Rewriter
from .report import Report, refusal
from .state import sampler_state
from .state.batches import Pass, Passes, is_loader, why_not_exact
from .state.files import Files
from .state.graph import Graph
from .state.journal import Journal
from .state.objects import Objects
from .state.variables import Digests, UnsavableError, Variables, digests

if TYPE_CHECKING:
    from ..checkpoint.checkpointer import Checkpointer

Chain = list[tuple[Loop, list[str]]]
_BETTER = "the program uses cloudgpu's Checkpointer itself, which does it better"


class Session:
    """Observer of the program from its first line to its end; the Checkpointer saves it as the object `program`."""

    def __init__(
        self, target: Target, *, folder: str | None = None, report: Path | None = None, unsaved: bool = False
    ) -> None:
        self._folder, self._unsaved = folder, unsaved
        self.code = Code(target.folder)
        self._objects = Objects()
        self._variables = Variables(self.code, self._objects.by_name)
        self._passes = Passes(self)
        self._loops = Loops(self.code, self._loop_started)
        self.rewriter = Rewriter(self.code)
        self._files = Files(self.code, Journal.of_program(str(target.script or target.module), folder))
        self._report = Report(report)
        self._checkpointer: Checkpointer | None = None
        self._watched = False
        """True once torch is imported and hooked."""
        self._off: str | None = None
        """Reason why nothing is saved; None: saving is on."""
        self._loaded: Mapping[str, Any] | None = None
        """State of the checkpoint until it is restored."""
        self._reached: list[Loop] = []
        """Loops entered so far on the way to the checkpoint's position."""
        self._since: Digests | None = None
        """Digests of the variables before the first outer loop was fast-forwarded to the checkpoint's position."""
        self._begun: list[Any] | None = None
        """Result of Objects.kinds() when training began."""
        self._trained: dict[tuple[str, ...], list[tuple[Loop, int]]] = {}
        """Outer loops and their iteration counts for each training loop, by the loop's position."""
        self._steps = 0
        """Number of optimizer steps since the last step boundary."""
        self._current: tuple[Loop, Pass] | None = None
        """Training loop and its pass through the loader, while state is collected for a save; None at other times."""

    def run(self, program: Callable[[], int]) -> int:
        """Run the program; return its exit code."""
        __import__("builtins").__dict__[HOOK] = self._loops.hook
        self.rewriter.install()
        if not self._unsaved:
            self._files.journal.cut_back()
        self._files.install()
        AfterImport("torch", self._watch).install()
        try:
            return program()
        finally:
            self._files.on = self._loops.on = False
            if self._checkpointer is not None:
                self._checkpointer.end(finished=False)
            self._report.write()

    def _watch(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._objects.watch(torch)
        self._passes.watch(torch.utils.data.DataLoader)
        self._files.watch(torch, "save", 1)
        register_optimizer_step_post_hook(self._after_step)
        self._watched, loops.compiler = True, torch.compiler

    # Events of the program

    @property
    def has_checkpoint(self) -> bool:
        """True while a checkpoint is loaded but not restored yet."""
        return self._loaded is not None

    def wants_passes(self) -> bool:
        """Return whether passes through loaders are watched; the first call creates the Checkpointer."""
        if self._off is not None or not self._loops.is_main() or not self.code.frames():
            return False
        if self._checkpointer is None:
            self._set_up()
        return self._off is None and self._checkpointer is not None

    def _loop_started(self, loop: Loop) -> Any:
        """Return the iterable to use for a new loop, without completed iterations on the way to a saved position."""
        source = loop.source
        if self._off is None and self._checkpointer is None and self._watched and self.rewriter.trains:
            self._set_up()  # this may be an outer loop of the training
        if self._loaded is None or self._off is not None:
            return source
        chain = self._loaded["place"]["chain"]
        expected = chain[len(self._reached)] if len(self._reached) < len(chain) else None
        if expected is None or expected["place"][-1] != loop.site:
            return source
        place = next(place for one, place in self._loops.chain() if one is loop)
        if place != expected["place"]:
            return source
        self._reached.append(loop)
        if len(self._reached) == len(chain):
            loop.count = expected["count"]
            return loops.continue_batches(source, loop.count, is_loader)
        if self._since is None:
            self._since = digests(self._variables.graph())
            self._restore_early()
        return loops.skip_items(loop, expected["count"] - 1, expected["given"])

    def before_batch(self, one: Pass) -> None:
        """Handle the request for a pass's next batch: restore the checkpoint, or end the training's step."""
        if self._off is not None or self._checkpointer is None:
            return
        if self._loaded is not None:
            if len(self._reached) == len(self._loaded["place"]["chain"]) and self._reached[-1].asking:
                self._resume(one, self._reached[-1])
            return
        if one.given and (not self._steps or one.at_end or not one.trained):
            return
        chain = self._loops.chain()
        if one.loop is None:
            one.loop = next((weakref.ref(loop) for loop, _ in chain if loop.asking), None)
        if not self._steps or one.at_end or not self._is_training(one, chain):
            return
        if (reason := self._doubt(one, chain)) is not None:
            self._refuse(reason)
            return
        self._boundary(one, chain[-1][0])

    def pass_opens(self) -> None:
        """Record the program's state before a pass that may be its training, if there is none yet to resume."""
        if self._loaded is None and not self._trained:
            self._begin()

    def _begin(self) -> None:
        """Record the current variables and objects: state that does not change from now on is not saved."""
        self._variables.begin()
        self._begun = self._objects.kinds()

    def _after_step(self, optimizer: object, *_: Any) -> None:
        if self._off is not None or not self._loops.is_main():
            return
        self._objects.stepped(optimizer)
        self._steps += 1
        # The outermost running pass: an inner pass may be a validation, or may belong to a single step.
        training = next((one for one in self._passes.living() if one.advanced), None)
        if training is not None:
            if self._loaded is not None:
                raise CheckpointError(
                    "the program trains before it comes to where it was: it is not the one that was saved"
                )
            self._files.early = False
            if not training.trained:
                training.trained = True
                self._note_training(training)
        elif not self._trained and self._loaded is None and self._steps > 1:
            if self._uses_checkpointer():
                self._leave_alone(_BETTER)
                return
            self._refuse("optimizers make steps outside of a `for` loop over a DataLoader: its place is not known")

    def _note_training(self, training: Pass) -> None:
        """Record a training loop's position and the iterations of its outer loops."""
        chain = self._loops.chain()
        for number, (loop, place) in enumerate(chain):
            if training.loop is not None and loop is training.loop():
                self._trained[tuple(place)] = [(outer, outer.count) for outer, _ in chain[:number]]
                return
        self._trained[("batches by next()",)] = []

    def _is_training(self, one: Pass, chain: Chain) -> bool:
        """Return whether a pass has trained, or is the next pass of a loop that has trained before."""
        if one.trained or one.given:
            return one.trained
        place = next((tuple(place) for loop, place in chain if one.loop is not None and loop is one.loop()), None)
        return place in self._trained and not any(other.advanced for other in self._passes.living())

    def _doubt(self, one: Pass, chain: Chain) -> str | None:
        """Return the reason why a resume could not return to the current position exactly; None if it can."""
        asking = [loop for loop, _ in chain if loop.asking]
        if not asking:
            return (
                "batches are asked for by next(), not by a `for` loop over the DataLoader: its place is in a variable"
            )
        if len(asking) > 1 or chain[-1][0] is not asking[0]:
            return (
                f"the batches of `{asking[0].site}` come through a generator function: loop over the DataLoader itself"
            )
        others = [other for other in self._passes.living() if other is not one and other.advanced]
        if others:
            return "two DataLoaders are read at the same time"
        if chain[-1][0].checked:
            return self._files.problem
        chain[-1][0].checked = True
        return self._doubt_loops(chain) or self._files.problem or self._doubt_state(one)

    def _doubt_loops(self, chain: Chain) -> str | None:
        for loop, _ in chain[:-1]:
            try:
                loops.check_pure(loop.source)
            except UnknownIterableError as error:
                return f"`{loop.site}` goes through {error}, which cannot be brought to its place: loop over a list"
            if (names := skips_by_number(self.rewriter.loops.get(loop.site))) is not None:
                return f"`{loop.site}` skips iterations ({names}): it resumes by itself. Remove that"
        try:
            loops.check_batches(chain[-1][0].source, is_loader)
        except UnknownIterableError as error:
            return f"`{chain[-1][0].site}` goes through {error}, which cannot be begun in its middle"
        place, counts = tuple(chain[-1][1]), {id(loop): loop.count for loop, _ in chain}
        for other, outer in self._trained.items():
            again = all(counts.get(id(loop), count) == count for loop, count in outer)
            if other != place and again:
                return f"a resume would train `{other[-1]}` again before it comes to `{place[-1]}`"
        return None

    def _doubt_state(self, one: Pass) -> str | None:
        if not self._report.open:
            return None
        if (name := self._objects.sharded()) is not None:
            return f"the parameters of {name} are sharded over ranks"
        return why_not_exact(one.loader)

    # Saving

    def _boundary(self, one: Pass, loop: Loop) -> None:
        checkpointer = self._checkpointer
        if checkpointer is None:
            return
        self._current = (loop, one)
        try:
            if self._report.open:
                self.state_dict()  # raises UnsavableError now rather than at the first save
                self._report_state(checkpointer)
            checkpointer.begin()
            self._steps = 0
            for other in self._passes.living():
                other.advanced = False
            checkpointer.end_step()
        except UnsavableError as error:
            self._refuse(str(error))
        finally:
            self._current = None

    def state_dict(self) -> dict[str, Any]:
        """Return the program's whole state, for the Checkpointer. Raises UnsavableError if a part cannot be saved."""
        strict = self._current is not None
        graph = self._graph()
        if strict:
            self._check_objects(graph)
        return {
            "arguments": sys.argv[1:],
            "objects": self._objects.state_dict(),
            "gradients": self._objects.gradients(graph),
            "groups": self._objects.groups(graph),
            "variables": self._variables.state_dict(graph, strict=strict),
            "files": self._files_to_save(strict=strict),
            "place": self._place(self._current[1]) if self._current is not None else None,
        }

    def _files_to_save(self, *, strict: bool) -> dict[str, Any]:
        """Return the contents of the tracked files.

        strict  if a file is too large, raise UnsavableError; otherwise log a warning, and return no files
        """
        try:
            return self._files.state_dict()
        except UnsavableError as error:
            if strict:
                raise
            logger().warning(f"run: do not run the finished program again: {error}")
            return {}

    def _graph(self) -> Graph:
        dead: frozenset[str] = frozenset()
        if self._current is not None and self._current[1].has_more:
            dead = dead_names(self.rewriter.loops.get(self._current[0].site), self.code.frames()[0].f_code)
        return self._variables.graph(dead)

    def _check_objects(self, graph: Graph) -> None:
        """Raise UnsavableError if the program's objects have changed, or if a trained parameter is unreachable."""
        if self._begun is not None and self._objects.kinds() != self._begun:
            raise UnsavableError("models, optimizers or schedulers have been made, replaced or dropped while training")
        for name, optimizer in self._objects.all("optimizer").items():
            for group in optimizer.param_groups:
                if any(graph.path_of(parameter) is None for parameter in group["params"]):
                    raise UnsavableError(f"{name} trains a tensor that no model and no variable of the program holds")

    def _place(self, one: Pass) -> dict[str, Any]:
        return {
            "chain": [
                {"place": place, "count": other.count, "given": other.current_item}
                for other, place in self._loops.chain()
            ],
            "number": one.number,
            "position": one.position.state_dict(),
            "at_start": one.at_start,
            "drawn": one.drawn.changed() if one.drawn is not None else {},
            "now": random_state.capture(random_state.generators_of(one.loader)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the state until the program reaches the checkpoint's position. Raises CheckpointError."""
        if state["place"] is not None and "chain" not in state["place"]:
            raise CheckpointError(
                "the checkpoint was made by an older version of `run`, which kept another kind of place: end this "
                "training with that version, or use another folder to start over"
            )
        self._loaded = state

    # Resuming

    def _restore_early(self) -> None:
        """Restore the objects that exist when the first outer loop is fast-forwarded.

        The program's code between this loop and the training loop runs again and may use them.
        """
        state = self._loaded
        if state is None:
            return
        if self._objects.by_name().keys() == state["objects"].keys():
            self._objects.load_state_dict(state["objects"], models=True)
        self._variables.load_present(state["variables"])

    def _resume(self, one: Pass, loop: Loop) -> None:
        """Restore all state, in the training loop of the checkpoint."""
        state, checkpointer = self._loaded, self._checkpointer
        if state is None or checkpointer is None:
            return
        place = state["place"]
        self._objects.load_state_dict(state["objects"], models=True)
        self._begin()
        self._variables.load_state_dict(state["variables"], self._since)
        graph = self._variables.graph()
        self._objects.load_groups(state["groups"], graph)
        self._objects.load_state_dict(state["objects"], models=False)
        self._objects.load_gradients(state["gradients"], graph)
        self._files.load_state_dict(state["files"])
        generators = random_state.generators_of(one.loader)
        self._passes.continues(one, place["number"])
        one.at_start = place["at_start"]
        if not place["position"]["batch"]:
            random_state.restore(one.at_start, generators)
        one.position.load_state_dict(place["position"])
        with sampler_state.restored(self.code, one.loader, place["drawn"]):
            one.open()
        self._variables.load_state_dict(state["variables"])
        random_state.restore(place["now"], generators)
        one.loop, one.trained = weakref.ref(loop), True
        self._note_training(one)
        self._loaded, self._steps, self._files.early = None, 0, False
        self._current = (loop, one)
        try:
            self._report_state(checkpointer)
            checkpointer.begin()
        finally:
            self._current = None

    # Start and end

    def _set_up(self) -> None:
        """Create the Checkpointer, which loads the newest checkpoint."""
        torch: Any = sys.modules["torch"]
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not distributed and find_world() is None:
            return  # loops before the process group is initialized belong to the setup
        if self._unsaved or self._uses_checkpointer():
            self._leave_alone("nothing is saved, as asked for by --unsaved" if self._unsaved else _BETTER)
            return
        from ..checkpoint.checkpointer import Checkpointer

        self._checkpointer = Checkpointer(program=self, folder=self._folder)
        if self._loaded is not None and self._checkpointer.finished:
            self._check_finished()

    def _check_finished(self) -> None:
        if self._loaded is not None and self._loaded["arguments"] != sys.argv[1:]:
            raise CheckpointError(
                f"this training is finished, with the arguments {self._loaded['arguments']}; now they are "
                f"{sys.argv[1:]}: give another folder to train anew"
            )
        if self._loaded is not None:
            self._files.load_state_dict(self._loaded["files"])  # this run of the program has overwritten some
            self._files.journal.forget()
        logger().info("the program has come to its end before: there is nothing left to do")
        raise SystemExit(0)

    def _uses_checkpointer(self) -> bool:
        """Return whether the program imports cloudgpu, or has created a Checkpointer by other means."""
        if str(__package__).partition(".")[0] in self.rewriter.imports:
            return True
        from ..checkpoint.checkpointer import Checkpointer

        made = (one for one in gc.get_objects() if issubclass(type(one), Checkpointer))
        return any(one is not self._checkpointer for one in made)

    def _leave_alone(self, reason: str) -> None:
        """Let the program run unmodified from here: nothing is saved, and no file is tracked or restored."""
        self._stop_saving(reason)
        self._files.on = False
        self._files.journal.forget()
        self._report.leave_alone(reason)

    def _stop_saving(self, reason: str) -> None:
        """Stop saving. Files are still tracked, because a later run may resume from an older checkpoint."""
        self._off = reason
        self._loops.on = False
        if self._checkpointer is not None:
            self._checkpointer.end(finished=False)

    def _refuse(self, reason: str) -> None:
        """Refuse a program that cannot be resumed exactly: end it, or only stop saving if it has been saved before.

        Existing checkpoints stay valid.
        """
        checkpointer = self._checkpointer
        if self._report.open:
            chain = self._loops.chain()
            self._files.journal.forget()
            self._report.refuse(reason)
            text = refusal(reason, chain[-1][0].site if chain else None)
            if checkpointer is not None:
                checkpointer.leave(EXIT_USER, text)
            OutcomeRecord("", int(os.environ.get("RANK") or 0)).leave(Outcome(EXIT_USER, 0, None, None, text))
        if checkpointer is None:
            return
        notice, step = checkpointer.poll_notice(), checkpointer.step
        self._stop_saving(reason)
        self._report.stop(reason, step)
        if notice is not None and notice.stop:
            code = EXIT_STALE if checkpointer.saved_step is not None else EXIT_NOTHING_SAVED
            checkpointer.leave(code, f"{notice.reason}: stopped at step {step}, which is not saved")

    def _report_state(self, checkpointer: Checkpointer) -> None:
        graph = self._graph()
        self._report.report_saved_state(
            step=checkpointer.step,
            objects=self._objects.by_name(),
            variables=self._variables.state_dict(graph, strict=False),
            generators=sorted(path for path, record in graph.records.items() if record["kind"] == "generator"),
            unknown=self._variables.unknown(graph),
            left_out=self._variables.left_out(graph),
            data=self._current[0].site if self._current is not None else None,
        )

    def end(self) -> None:
        """Save or report the program's normal end.

        Raises CheckpointError if the program ended without reaching the position of the checkpoint to resume.
        """
        checkpointer = self._checkpointer
        if checkpointer is None or checkpointer.finished:
            return
        if self._off is None and self._loaded is not None:
            raise CheckpointError(
                f"the program has ended without coming to where it was when it was saved "
                f"({self._loaded['place']['chain'][-1]['place'][-1]}): it is not the same program"
            )
        if self._off is None:
            checkpointer.end()
        else:
            checkpointer.report(EXIT_DONE, "the program has come to its end")
        self._files.on = False
        self._files.journal.forget()
