"""Naming rule for Cloud Storage buckets.

https://cloud.google.com/storage/docs/buckets#naming (names with dots require a verified domain)
"""

from __future__ import annotations

import re

from ..names import Rule

RULE = Rule(
    re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]"),
    re.compile(r"^goog|google|g00gle"),
    "3 to 63 lower-case letters, digits, hyphens and underscores, and not google",
)
