"""Show which launcher a job with `launcher: auto` gets on an offer, before anything is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..output import remark

if TYPE_CHECKING:
    from ....jobspecs.loading.draft import LoadedSpec
    from ....jobspecs.plan import Offer


def say_launcher(loaded: LoadedSpec, offer: Offer) -> None:
    """Print on stderr the launcher that `launcher: auto` selects, unless the job is a single process. The machines
    apply the same rule to the uploaded code."""
    spec = loaded.spec
    alone = offer.nodes == 1 and all(role.count <= 1 for role in offer.roles)
    if spec.launcher != "auto" or alone:
        return
    from ....runtime.autolaunch import NodeLayout, choose

    nodes = [role for role in offer.roles for _ in range(role.nodes)]
    shape = NodeLayout([node.role for node in nodes], [int(node.count) for node in nodes])
    code = None if spec.code is None else loaded.base / spec.code
    choice = choose(spec.run, code, shape, spec.env)
    remark(f"launcher: {choice.launcher}; {choice.reason}")
