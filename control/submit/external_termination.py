"""Name what terminates a machine that hangs while no supervisor runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...jobspecs.targets import info
from ...provisioners.shared import infra_outputs

if TYPE_CHECKING:
    from ...jobspecs.plan import Offer


def advice(offer: Offer) -> str | None:
    """Return how to have such machines ended; None: the provider ends them, or an infra stack known here does."""
    if info(offer.cloud).ended_outside:
        return None
    try:
        if infra_outputs.load(offer.cloud, offer.region) is not None:
            return None
    except ValueError:  # there is one, and other commands say what is wrong with it
        return None
    return (
        f"nothing ends a machine on {offer.cloud} that hangs while no supervisor runs;\n"
        f"      this does: cloudgpu infra up --cloud {offer.cloud} --region {offer.region}"
    )
