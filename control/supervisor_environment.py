"""Environment variables with cloud settings and credentials, compared with those of the running supervisor.

Project, account and credentials of a cloud are taken from the environment of the process that calls the cloud, the
supervisor. Its lock file has a keyed hash of each variable, never a value.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection, Iterable, Mapping

from ..jobspecs.targets import listed
from ..provisioners.target import Target, target_of
from .paths import DATABASE_VARIABLE

_STORE = "store"


def settings_of(clouds: Collection[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the variables with settings of these clouds that are set in an environment."""
    return frozenset().union(*(one.settings.set_in(environ) for one in _targets(clouds)))


def credentials_of(clouds: Collection[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the variables with credentials for these clouds that are set in an environment."""
    return frozenset().union(*(one.credentials.set_in(environ) for one in _targets(clouds)))


def credentials_among(cloud: str, environ: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the variables with credentials for a cloud that are set in an environment."""
    return sorted(credentials_of([cloud], environ))


def hashes(environ: Mapping[str, str], salt: bytes) -> dict[str, str]:
    """Return name -> keyed hash of each variable that belongs to a cloud or to the store."""
    names = settings_of(listed(), environ) | credentials_of(listed(), environ)
    found = {name: _hash(environ[name], salt) for name in sorted(names)}
    if url := environ.get(DATABASE_VARIABLE, ""):
        found[DATABASE_VARIABLE] = _hash(url, salt)
    return found | {_STORE: _hash(_without_password(url), salt)}


def has_new_password(theirs: Mapping[str, str], salt: bytes) -> bool:
    """Return whether the store's URL differs from the one hashed in `theirs` only in user and password.

    theirs: result of hashes() in the other process
    """
    url = os.environ.get(DATABASE_VARIABLE, "")
    is_same = theirs.get(_STORE) == _hash(_without_password(url), salt)
    return is_same and bool(differing([DATABASE_VARIABLE], theirs, salt))


def differing(names: Collection[str], theirs: Mapping[str, str], salt: bytes) -> list[str]:
    """Return the sorted names of variables whose values in this process differ from those hashed in `theirs`.

    theirs: result of hashes() in the other process, with `salt`
    """
    ours = {name: _hash(os.environ[name], salt) for name in names if os.environ.get(name)}
    return sorted(name for name in names if ours.get(name) != theirs.get(name))


def _targets(names: Iterable[str]) -> list[Target]:
    return [found for name in names if (found := target_of(name)) is not None]


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)


def _hash(value: str, salt: bytes) -> str:
    return hmac.new(salt, os.fsencode(value), hashlib.sha256).hexdigest()[:32]
