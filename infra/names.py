"""Validation of bucket names by each cloud's rules (infra/<cloud>/bucket_name.py), before any resource is created."""

from __future__ import annotations

import importlib
import re
from typing import NamedTuple

from .errors import BadRequestError


class Rule(NamedTuple):
    """A cloud's naming rule for buckets."""

    pattern: re.Pattern[str]
    forbidden: re.Pattern[str]
    allowed: str


def check_bucket(cloud: str, name: str) -> None:
    """Raise BadRequestError for an invalid bucket name."""
    rule: Rule = importlib.import_module(f".{cloud}.bucket_name", __package__).RULE
    if not rule.pattern.fullmatch(name) or rule.forbidden.search(name):
        raise BadRequestError(f"{name!r} cannot be the name of a bucket on {cloud}", f"it is {rule.allowed}")
