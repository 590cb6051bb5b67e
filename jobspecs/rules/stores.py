"""Rules on the object stores and paths in a job file.

Variables in URLs are not expanded. A cloud's machines reach only the object store of that cloud, with the credentials
of their role; this machine uses the submitter's credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..diagnostics import Loc, Problem, quote
from ..models import CloudName, JobSpec
from ..suggest import one_of
from ..targets import info

_VARIABLE = r"\$(?:\{\w*\}?|[A-Za-z_]\w*)"
_OWN_CONTAINERS = re.compile(r"az://\$(?:web|root|logs)(?=[@/]|$)")
"""Azure containers whose names begin with $."""


def reaches(cloud: str, where: str | None) -> bool:
    """Return whether the cloud's machines can use a URL or path. None is the default: a folder on this computer."""
    scheme = where.partition("://")[0] if where and "://" in where else "file"
    return scheme in info(cloud).schemes


def check_variables(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem for each store URL or path that contains `$NAME` or `${NAME}`."""
    for loc, where in _stores(spec):
        found = re.search(_VARIABLE, _OWN_CONTAINERS.sub("", where)) if "$" in where else None
        if found is not None:
            key = ".".join(map(str, loc))
            message = f"{quote(found[0])} is not expanded in a job file"
            yield Problem(loc, "variable-in-url", message, f'write the value, or let the shell do it: --set "{key}=…"')


def unreachable(spec: JobSpec) -> list[Problem]:
    """Return a problem for each store that the machines of none of the requested clouds can reach."""
    clouds = spec.resources.cloud or ()
    problems = []
    wanted: list[tuple[Loc, list[str | None]]] = []
    if spec.job_dir is not None:
        wanted.append((("job_dir",), [spec.job_dir_on(cloud) for cloud in clouds]))
    wanted += [(("inputs", path), [spec.inputs_on(cloud).get(path) for cloud in clouds]) for path in spec.inputs]
    for loc, places in wanted:
        if clouds and not any(where and reaches(cloud, where) for cloud, where in zip(clouds, places, strict=True)):
            schemes = dict.fromkeys(f"{scheme}://" for cloud in clouds for scheme in info(cloud).schemes)
            message = f"machines of {one_of(clouds)} cannot reach it"
            problems.append(Problem(loc, "unreachable-store", message, f"they use {one_of(list(schemes))}"))
    return problems


def _stores(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    """Yield every URL or path of a store with its place."""
    yield from _urls(("job_dir",), spec.job_dir)
    for path, urls in spec.inputs.items():
        yield from _urls(("inputs", path), urls)


def _urls(loc: Loc, urls: str | Mapping[CloudName, str] | None) -> Iterator[tuple[Loc, str]]:
    if isinstance(urls, str):
        yield loc, urls
    elif urls is not None:
        yield from (((*loc, cloud), url) for cloud, url in urls.items())
