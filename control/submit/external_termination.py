"""Advice on how to terminate machines that hang while no supervisor runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...jobspecs.targets import info
from ...provisioners.shared import infra_outputs

if TYPE_CHECKING:
    from ...jobspecs.plan import Offer


def advice(offer: Offer) -> str | None:
    """Return advice on how to have hung machines terminated; None: the provider or an infra stack terminates them."""
    if info(offer.cloud).ended_outside:
        return None
    try:
        if infra_outputs.load(offer.cloud, offer.region) is not None:
            return None
    except ValueError:  # a stack exists; other commands report what is wrong with its record
        return None
    return (
        f"nothing ends a machine on {offer.cloud} that hangs while no supervisor runs;\n"
        f"      this does: cloudgpu infra up --cloud {offer.cloud} --region {offer.region}"
    )
