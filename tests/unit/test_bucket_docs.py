"""Commands of the docs that make a bucket leave nothing there that bills after it was deleted."""

from __future__ import annotations

import re
from pathlib import Path

import cloudgpu

DOCS = Path(cloudgpu.__file__).parent / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}


def test_google_s_buckets_keep_no_deleted_checkpoints() -> None:
    pattern = re.compile(r"gcloud storage buckets create [^`\n]*")
    commands = [found for page in PAGES.values() for found in pattern.findall(page)]
    assert len(commands) >= 3
    assert [one for one in commands if "--soft-delete-duration=0" not in one] == []


def test_s3_buckets_drop_uploads_that_were_never_finished() -> None:
    made = PAGES["aws.md"].partition("aws s3 mb ")[2].partition("\n4. ")[0]
    assert "AbortIncompleteMultipartUpload" in made


def test_storage_accounts_keep_no_deleted_checkpoints() -> None:
    made = PAGES["azure.md"].partition("az storage account create ")[2].partition("\n5. ")[0]
    assert "--enable-delete-retention false" in made
