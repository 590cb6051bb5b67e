"""The documented commands that create buckets disable features that would retain, and bill, deleted checkpoints and
unfinished uploads."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import cloudgpu

DOCS = Path(cloudgpu.__file__).parent / "docs"


def commands(page: str, beginning: str) -> list[list[str]]:
    """Return the words of each command of a page that starts with `beginning`, with continuation lines joined."""
    text = (DOCS / page).read_text().replace("\\\n", " ")
    found = [shlex.split(line) for line in re.findall(rf"^ {{4,}}({re.escape(beginning)} .*)$", text, re.MULTILINE)]
    assert found, f"{page} has no {beginning}"
    return found


@pytest.mark.parametrize("page", ["guides/gcp.md", "guides/vertex.md"])
def test_buckets_of_cloud_storage_are_made_without_soft_delete(page: str) -> None:
    assert all("--soft-delete-duration=0" in words for words in commands(page, "gcloud storage buckets create"))


def test_buckets_of_s3_remove_unfinished_uploads() -> None:
    [bucket] = commands("guides/aws.md", "aws s3 mb")
    [words] = commands("guides/aws.md", "aws s3api put-bucket-lifecycle-configuration")
    assert words[words.index("--bucket") + 1] == bucket[3].removeprefix("s3://")
    [rule] = json.loads(words[words.index("--lifecycle-configuration") + 1])["Rules"]
    assert (rule["Status"], rule["Filter"]) == ("Enabled", {"Prefix": ""})
    assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] >= 1


def test_accounts_of_blob_storage_are_without_soft_delete() -> None:
    [words] = commands("guides/azure.md", "az storage account blob-service-properties update")
    assert words[words.index("--enable-delete-retention") + 1] == "false"
