"""`cloudgpu gc`: find and remove resources made for jobs that no job needs any more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.options import json_option, yes_option
from .shared.output import Column, can_ask, echo_json, echo_table, remark, warning
from .shared.text import duration, money

if TYPE_CHECKING:
    from ..control.gc_policy import JudgedLeftover, Search

_HEADS = (
    Column("where"),
    Column("job", least=10),
    Column("attempt", right=True, spare=4),
    Column("what", least=18),
    Column("age", right=True, spare=2),
    Column("expires in", right=True, spare=3),
    Column("USD/h", right=True),
    Column("owner", least=8),
    Column("state"),
)


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Only show it.")
@click.option("--cloud", "clouds", metavar="TARGET", multiple=True, help="Only there; else wherever you may look.")
@click.option("--region", "regions", metavar="REGION", multiple=True, help="Only these; else all that are enabled.")
@click.option("--expired-only", is_flag=True, help="Remove nothing that may still be of use to its owner.")
@click.option(
    "--alive", is_flag=True, help="Remove also what still writes heartbeats: a copy of this store may need it."
)
@click.option("--others", is_flag=True, help="Remove also what other users of the account left, once it has expired.")
@yes_option
@json_option
def command(
    *,
    dry_run: bool,
    clouds: tuple[str, ...],
    regions: tuple[str, ...],
    expired_only: bool,
    alive: bool,
    others: bool,
    yes: bool,
    as_json: bool,
) -> Exit | None:
    """Find everything tagged as cloudgpu's that no job needs any more, say what it costs, and remove it.

    \b
    cloudgpu gc --dry-run
    cloudgpu gc --cloud aws --region us-east-1 --yes
    cloudgpu gc --cloud gcp --cloud vertex --yes
    cloudgpu gc --others --expired-only --yes

    It looks in all regions and needs no local state, and names the targets that it looked at and those that it did not
    (not set up on this computer); one that --cloud names and that cannot be searched is an error. What a job of this
    store needs is never touched. Everything carries a time after which any user may remove it: what belongs to other
    users stays until then, and after that goes with --others only. Without --yes it asks; where it cannot ask, nothing
    is removed. What is `alive` (no job of this store needs it, but a machine of it has written a heartbeat within ten
    minutes, or its job dir cannot be read) is asked for once more, or needs --alive.
    """
    from ..control import gc_policy

    now = time.time()
    targets, skipped = _targets(clouds)
    search = gc_policy.find(targets, regions, now)
    shown = [one for one in search.found if one.verdict != "in use"]
    going = [one for one in shown if one.is_removable(others=others, expired_only=expired_only, alive=alive)]
    doubtful = [one for one in shown if one.verdict == "alive" and one not in going]
    _show(search, shown, going, skipped, now, as_json=as_json)
    if shown and not going and not doubtful and not dry_run and not as_json:
        remark("nothing was removed: none of it may be removed yet; `cloudgpu gc --help` tells what may, and when")
    if (going or doubtful) and not dry_run:
        if going and not yes and not can_ask():
            remark("nothing was removed: add --yes")
            return Exit.USAGE
        if going and not yes:
            click.confirm(f"remove what is left of {len(going)} launches?", err=True, abort=True)
        confirmed = _confirm_alive(doubtful, expired_only=expired_only, yes=yes)
        _remove([*going, *confirmed], now, others=others, expired_only=expired_only, alive=alive or bool(confirmed))
    return Exit.UNAVAILABLE if search.missed else None


def _show(
    search: Search,
    shown: Sequence[JudgedLeftover],
    going: Sequence[JudgedLeftover],
    skipped: Mapping[str, str],
    now: float,
    *,
    as_json: bool,
) -> None:
    """Print the leftovers, and the targets that were and were not searched."""
    if as_json:
        echo_json(
            {
                "leftovers": [_json(one, goes=one in going) for one in shown],
                "looked_at": search.searched,
                "not_looked_at": {**skipped, **search.missed},
            }
        )
    elif shown:
        echo_table(_HEADS, [_row(one, now) for one in shown])
        remark(_costs(shown))
    elif search.searched and not search.missed:
        remark("nothing to do: no leftovers were found")
    if not as_json:
        remark(_scope(search.searched, skipped))
    for place, why in search.missed.items():
        warning(f"{place} was not looked at: {why}")


_NOT_SET_UP = "not set up on this computer"


def _targets(asked: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the targets to search, and a dict of skipped target -> reason. Raises CommandError for an unknown one."""
    from ..provisioners import is_set_up, launchable

    known = sorted(launchable())
    for name in asked:
        if name not in known:
            hint = f"known: {', '.join(known)}"
            raise CommandError(f"--cloud {name}: nothing is launched there", hint=hint, exit_code=Exit.USAGE)
    if asked:
        return list(dict.fromkeys(asked)), {}
    searched = [target for target in known if is_set_up(target)]
    return searched, dict.fromkeys((target for target in known if target not in searched), _NOT_SET_UP)


def _scope(searched: Sequence[str], skipped: Mapping[str, str]) -> str:
    """Return a line that names the targets searched and those skipped."""
    looked = f"looked at: {', '.join(searched) or 'nothing'}"
    if not skipped:
        return looked
    hint = "`cloudgpu check` says what is missing"
    return f"{looked}; not looked at, for they are {_NOT_SET_UP}: {', '.join(skipped)} ({hint})"


def _confirm_alive(doubtful: Sequence[JudgedLeftover], *, expired_only: bool, yes: bool) -> list[JudgedLeftover]:
    """Ask at the terminal about launches that still write heartbeats; return those to remove."""
    asked = [one for one in doubtful if one.is_expired or not expired_only]
    if not asked:
        return []
    names = ", ".join(f"{one.leftover.job_id}, attempt {one.leftover.attempt}" for one in asked)
    remark(
        f"still alive: {names} wrote a heartbeat within ten minutes, or the job dir cannot be read; "
        "a copy of this store may need it"
    )
    if yes or not can_ask():
        remark("it was not removed: add --alive if no other computer runs that job")
        return []
    return asked if click.confirm("remove it all the same?", default=False, err=True) else []


def _remove(going: Sequence[JudgedLeftover], now: float, *, others: bool, expired_only: bool, alive: bool) -> None:
    """Remove leftovers; a failure does not stop the others. Raises CommandError that lists the failures."""
    from ..control import gc_policy
    from ..provisioners import ProvisionError

    failed = []
    for one in going:
        name = f"{one.leftover.job_id or one.leftover.things[0].id}, attempt {one.leftover.attempt}"
        try:
            if gc_policy.remove(one, now, others=others, expired_only=expired_only, alive=alive):
                remark(f"removed what was left of {name}: {_what(one)}")
        except ProvisionError as error:
            failed.append(f"{name}: {error}")
    if failed:
        reasons = "\n".join(f"  {line}" for line in failed)
        raise CommandError(
            f"{len(failed)} of {len(going)} could not be removed:\n{reasons}",
            hint="run the command again: what is gone already does no harm",
            exit_code=Exit.UNAVAILABLE,
        )


def _row(one: JudgedLeftover, now: float) -> list[str]:
    left = one.leftover
    expires = "never" if left.expires is None else duration(left.expires - now)
    return [
        " ".join([left.target, *left.regions]),
        left.job_id or "-",
        str(left.attempt or "-"),
        _what(one),
        "-" if left.created is None else duration(now - left.created),
        "past" if one.is_expired else expires,
        "unknown" if left.price is None else f"{left.price:.4f}",
        left.owner if one.verdict in ("another's", "expired") else "this store",
        one.verdict,
    ]


def _what(one: JudgedLeftover) -> str:
    """Return the resources of a launch by kind: `1 instance, 2 volumes`."""
    kinds = Counter(thing.kind for thing in one.leftover.things)
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.items())


def _costs(shown: Sequence[JudgedLeftover]) -> str:
    known = sum((one.leftover.price or Decimal(0) for one in shown), Decimal(0))
    unknown = sum(one.leftover.price is None for one in shown)
    more = f", and {unknown} of them by an unknown price" if unknown else ""
    return f"together {money(known)}/h by the tables{more}"


def _json(one: JudgedLeftover, *, goes: bool) -> dict[str, Any]:
    left = one.leftover
    return {
        "target": left.target,
        "regions": left.regions,
        "job_id": left.job_id,
        "attempt": left.attempt,
        "token": left.token,
        "owner": left.owner,
        "state": one.verdict,
        "removable": goes,
        "created": left.created,
        "expires": left.expires,
        "price_usd_h": None if left.price is None else str(left.price),
        "things": [thing.to_json() for thing in left.things],
    }
