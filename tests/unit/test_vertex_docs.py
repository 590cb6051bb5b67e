"""docs/guides/vertex.md agrees with the program: messages, images, settings, labels, timeouts."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import cloudgpu
from cloudgpu.provisioners.shared import errors, tags
from cloudgpu.provisioners.vertex import clients, launching, provisioner, request, worker_pools

ROOT = Path(cloudgpu.__file__).parent
PAGE = (ROOT / "docs" / "guides" / "vertex.md").read_text()
SOURCES = [*(ROOT / "provisioners").rglob("*.py"), *(ROOT / "control").rglob("*.py")]


def test_every_message_of_the_table_is_one_that_is_printed() -> None:
    table = PAGE.partition("## Troubleshooting")[2]
    messages = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(messages) > 20
    code = "\n".join(path.read_text() for path in SOURCES)
    rules = errors.rules()
    documented = "\n".join(
        " ".join([*rule.codes, rule.pattern.pattern if rule.pattern else "", rule.advice])
        for rule in rules
        if rule.cloud in ("vertex", "*")
    )
    assert [message for message in messages if message not in documented and message not in code] == []


def test_images_are_those_of_the_table() -> None:
    printed = re.findall(r"^\| .+ \| `(docker\.io/[^`]+)` \|", PAGE, re.MULTILINE)
    with (ROOT / "provisioners/vertex/images.csv").open() as file:
        assert printed == [row["image"] for row in csv.DictReader(file)]


def test_settings_and_labels_are_named() -> None:
    settings = (clients.TRANSPORT, clients.ENDPOINT, request.NETWORK, request.RESERVATION, *clients.TRANSPORTS)
    labels = (tags.OWNER, tags.JOB, tags.ATTEMPT, tags.TOKEN, tags.EXPIRES, request.MARKET)
    for name in (*settings, *labels):
        assert f"`{name}`" in PAGE, name
    assert "`cloudgpu-pool1: worker-0-9`" in PAGE
    nodes = worker_pools.from_labels({"cloudgpu-pool1": "worker-0-9"})
    assert list(nodes) == [f"worker-{index}.1" for index in range(9)]


def test_patience_is_as_said() -> None:
    assert f"waits {provisioner.QUEUE_S / 60:.0f} minutes" in PAGE
    assert f"PENDING for more than {provisioner.PENDING_S / 60:.0f} minutes" in PAGE
    assert f"for {launching.UNSEEN_S:.0f} s, before the call is repeated" in PAGE
    assert f"for {launching.SEARCH_S / 60:.0f} minutes after such a call" in PAGE
    assert (request.MAX_WAIT_S, request.MAX_FLEX_S) == (86_400, 7 * 86_400)
    source = (ROOT / "provisioners/boot/shipped/host_container.py").read_text()
    assert "OTHERS_S = 180.0" in source and "at most 3 minutes" in PAGE
