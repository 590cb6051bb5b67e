"""Requests of one machine to its job dir's store, and their cost per day."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.reporting import ReportingNode, reporting_node

from .measure import Row

DAY = 1_440.0
PRICES = {"S3": (5.0, 0.4), "Cloud Storage": (5.0, 0.4), "Blob Storage": (5.5, 0.44)}
"""List prices in US dollars per million writes and listings, and per million reads: S3 Standard in us-east-1, Cloud
Storage Standard in one region, Blob Storage hot LRS in East US."""
_WRITES = ("PUT", "list")


def _rows(what: str, made: Mapping[str, int], minutes: float, budget: float | None) -> list[Row]:
    writes = sum(made.get(kind, 0) for kind in _WRITES) / minutes
    reads = sum(made.values()) / minutes - writes
    how = f"heartbeat, log and orders; a program that prints constantly; {minutes:.0f} minutes, 60 times as fast"
    found = [
        Row(f"{what}: writes", writes, budget, "a minute and machine", how),
        Row(f"{what}: reads", reads, None, "a minute and machine", how),
    ]
    for store, (write, read) in PRICES.items():
        cost = DAY * (writes * write + reads * read) / 1e6
        found.append(Row(f"{what}: {store}", cost, None, "USD a day and machine", "list prices of requests"))
    return found


def _settled(node: ReportingNode) -> None:
    while node.pace.is_quick:
        node.requests(1)


def rows(minutes: float = 36) -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as folder,
        s3.running() as store,
        mock.patch.dict(os.environ, store.environment),
        reporting_node(store, Path(folder)) as node,
    ):
        _settled(node)
        steady = _rows("no command watches", node.requests(minutes), minutes, 1.0 + 2 / minutes)
        node.pace.stay_quick()
        watched = _rows("a command follows", node.requests(6), 6, None)
    return steady + watched
