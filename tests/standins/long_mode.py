"""Long mode of the tests (CLOUDGPU_LONG=1): complete sweeps, and checks on every cloud that otherwise run on only
one."""

from __future__ import annotations

import os

import pytest

LONG = os.environ.get("CLOUDGPU_LONG", "") not in ("", "0")
in_long_mode = pytest.mark.skipif(not LONG, reason="only with CLOUDGPU_LONG=1")
