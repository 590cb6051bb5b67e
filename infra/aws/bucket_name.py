"""Naming rule for S3 buckets.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html (dots break TLS and are not allowed here)
"""

from __future__ import annotations

import re

from ..names import Rule

RULE = Rule(
    re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"),
    re.compile(r"^(xn--|sthree-|amzn-s3-demo-)|(-s3alias|--ol-s3|--x-s3|--table-s3)$"),
    "3 to 63 lower-case letters, digits and hyphens",
)
