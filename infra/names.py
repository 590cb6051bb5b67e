"""Names of buckets as each cloud allows them, checked before anything is made."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import BadRequestError


class _Rule(NamedTuple):
    """What a cloud's bucket may be called."""

    pattern: re.Pattern[str]
    forbidden: re.Pattern[str]
    allowed: str


# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html (dots break TLS, so none here),
# https://cloud.google.com/storage/docs/buckets#naming (dots need a domain of one's own), and
# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules, Microsoft.Storage
_RULES = {
    "aws": _Rule(
        re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"),
        re.compile(r"^(xn--|sthree-|amzn-s3-demo-)|(-s3alias|--ol-s3|--x-s3|--table-s3)$"),
        "3 to 63 lower-case letters, digits and hyphens",
    ),
    "gcp": _Rule(
        re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]"),
        re.compile(r"^goog|google|g00gle"),
        "3 to 63 lower-case letters, digits, hyphens and underscores, and not google",
    ),
    "azure": _Rule(
        re.compile(r"[\w.()-]{0,89}[\w()-]/[a-z0-9]{3,24}/[a-z0-9](?:-?[a-z0-9]){2,62}"),
        re.compile(r"(?!)"),
        "GROUP/ACCOUNT/CONTAINER: a resource group, 3 to 24 lower-case letters and digits, then 3 to 63 with single "
        "hyphens between",
    ),
}


def check_bucket(cloud: str, name: str) -> None:
    """Raise BadRequestError for what cannot be the name of a bucket."""
    rule = _RULES[cloud]
    if not rule.pattern.fullmatch(name) or rule.forbidden.search(name):
        raise BadRequestError(f"{name!r} cannot be the name of a bucket on {cloud}", f"it is {rule.allowed}")
