"""Outputs of a node: files that the run wrote, and outputs that are missing at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....protocol.outputs import FOLDER
from ...outputs import Before, Destination, upload_outputs
from ...processes.exit_verdict import Ending
from .errors import NodeError

if TYPE_CHECKING:
    from ...launchers import ProgramContext
    from .program import Node

RESULT_S = 2.0
"""Seconds before a deadline that are reserved to write the last log lines and the result."""
_UPLOAD_S = 6 * 3_600.0  # timeout for the upload, unless an order sets an earlier deadline


class NodeOutputs:
    """Uploads the job's outputs from this node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._before = Before(node.home / "outputs.before")
        self.missing: list[str] = []
        """Declared outputs that are missing, as upload_outputs() returns them; only on rank 0, as the other nodes may
        have none."""

    def record_existing(self, outputs: Sequence[str]) -> None:
        """Record the files that came with the code or the inputs: they are outputs only if the program changes them.

        Raises NodeError.
        """
        if outputs:
            try:
                self._before.note(outputs, self._node.code)
            except OSError as error:
                raise NodeError(f"the files of `outputs` cannot be listed: {error}") from error

    def upload(self, place: ProgramContext) -> None:
        """Upload what the run has written."""
        node, outputs = self._node, place.job.outputs
        if not outputs:
            return
        try:
            unchanged = self._before.unchanged(outputs, node.code)
        except (OSError, ValueError) as error:  # ValueError: the machine was reset while the list was written
            node.log.add_agent_line(f"outputs: which files existed before the run is unknown: {error}")
            unchanged = set()
        is_first = place.node.rank == 0
        folder = FOLDER if is_first else f"{FOLDER}/nodes/{node.name.rpartition('.')[0]}"
        missing = upload_outputs(
            outputs,
            node.code,
            Destination(node.job_dir, node.attempt, node.name, folder),
            unchanged=unchanged,
            seconds_left=lambda: node.runner.seconds_left(_UPLOAD_S) - RESULT_S,
            say=node.log.add_agent_line,
        )
        self.missing = missing if is_first else []

    def judge(self, ending: Ending, required: Sequence[str]) -> Ending:
        """Return the node's ending: a program that succeeded fails if required outputs are missing."""
        lacking = [name for name in self.missing if name in required]
        if ending.outcome != "succeeded" or not lacking:
            return ending
        return Ending("failed", ending.exit_code, f"required outputs are missing: {', '.join(lacking)}", final=True)
