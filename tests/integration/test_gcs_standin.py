"""The Cloud Storage stand-in, tested with clients of other projects: Google's own (JSON API) and obstore (XML API)."""

from __future__ import annotations

import base64
import importlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.auth
import google.auth.transport.requests
import google_crc32c
import obstore
import pytest
import requests
from google.api_core import exceptions
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError, PreconditionError
from obstore.store import GCSStore

from ..standins.faults import LOSE, error
from ..standins.gcp import SUBMITTER, Gcp
from ..standins.gcs import GcsControl

storage: Any = importlib.import_module("google.cloud.storage")  # it has no type hints
BUCKET = "a-bucket"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
MB = 1 << 20


class World:
    """Both clients of one store."""

    def __init__(self, gcp: Gcp) -> None:
        self.gcp, self.control = gcp, GcsControl(gcp.url)
        self.control.make_bucket(BUCKET, "EUROPE-WEST4")
        self.credentials = google.auth.default(scopes=[SCOPE])[0]
        client = storage.Client(credentials=self.credentials)
        self.json = client.bucket(BUCKET)
        self.client = client
        plain: dict[str, Any] = {"config": {"base_url": gcp.url}, "client_options": {"allow_http": True}}
        self.xml = GCSStore(BUCKET, **plain)
        self.hasty = GCSStore(BUCKET, **plain, retry_config={"max_retries": 0})

    def ask(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send a hand-written request with the same credentials."""
        if not self.credentials.valid:
            self.credentials.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
        headers = {"Authorization": f"Bearer {self.credentials.token}", **more.pop("headers", {})}
        return requests.request(method, f"{self.gcp.url}{path}", headers=headers, timeout=180, **more)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with Gcp() as gcp:
        for name, value in gcp.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield World(gcp)


def blob(world: World, name: str, **more: Any) -> Any:
    return world.json.blob(name, **more)


class TestBothSeeTheSame:
    @pytest.mark.parametrize("name", ["a", "a/b c/ü#?%&+=", "a//b", "ends/"])
    def test_one_client_reads_what_the_other_has_written(self, world: World, name: str) -> None:
        blob(world, name).upload_from_string(b"one\r\n\r\n--two\n")
        assert [one.name for one in world.client.list_blobs(BUCKET)] == [name]
        if name not in ("a//b", "ends/"):  # obstore normalizes these names
            assert bytes(obstore.get(world.xml, name).bytes()) == b"one\r\n\r\n--two\n"

    def test_generations_and_checksums(self, world: World) -> None:
        made = obstore.put(world.xml, "a", b"content")
        seen = world.json.get_blob("a")
        assert str(seen.generation) == made["version"]
        assert seen.crc32c == base64.b64encode(google_crc32c.value(b"content").to_bytes(4, "big")).decode()
        assert (seen.size, seen.metageneration, bool(seen.md5_hash)) == (7, 1, True)
        again = obstore.put(world.xml, "a", b"content")
        assert int(str(again["version"])) > int(str(made["version"]))
        assert blob(world, "a").download_as_bytes(raw_download=True) == b"content"  # the client compares checksums

    def test_a_multipart_object_has_no_md5(self, world: World) -> None:
        parts = [memoryview(os.urandom(6 * MB)), memoryview(os.urandom(6 * MB)), memoryview(b"end")]
        obstore.put(world.xml, "large", iter(parts), chunk_size=6 * MB)
        seen = world.json.get_blob("large")
        assert (seen.md5_hash, seen.size) == (None, 12 * MB + 3)
        assert seen.download_as_bytes() == b"".join(parts)

    def test_pages_of_listings(self, world: World) -> None:
        for number in range(7):
            blob(world, f"d/{number}/x").upload_from_string(b"")
        blob(world, "d/last").upload_from_string(b"")
        pages = list(world.client.list_blobs(BUCKET, prefix="d/", delimiter="/", page_size=3).pages)
        assert [sorted(page.prefixes) for page in pages] == [
            ["d/0/", "d/1/", "d/2/"],
            ["d/3/", "d/4/", "d/5/"],
            ["d/6/"],
        ]
        assert [one.name for page in pages for one in page] == ["d/last"]
        listed = obstore.list_with_delimiter(world.xml, "d")
        assert [entry["path"] for entry in listed["objects"]] == ["d/last"]
        assert len(listed["common_prefixes"]) == 7


class TestConditions:
    def test_a_new_object_is_made_once(self, world: World) -> None:
        blob(world, "a").upload_from_string(b"1", if_generation_match=0)
        with pytest.raises(exceptions.PreconditionFailed):
            blob(world, "a").upload_from_string(b"2", if_generation_match=0)
        with pytest.raises(AlreadyExistsError):
            obstore.put(world.xml, "a", b"2", mode="create")

    def test_a_certain_generation_is_replaced_or_deleted(self, world: World) -> None:
        made = blob(world, "a")
        made.upload_from_string(b"1")
        first = made.generation
        made.upload_from_string(b"2", if_generation_match=first)
        with pytest.raises(exceptions.PreconditionFailed):
            blob(world, "a").upload_from_string(b"3", if_generation_match=first)
        with pytest.raises(PreconditionError):
            obstore.put(world.xml, "a", b"3", mode={"version": str(first)})
        with pytest.raises(exceptions.PreconditionFailed):
            blob(world, "a").delete(if_generation_match=first)
        blob(world, "a").delete(if_generation_match=made.generation)
        with pytest.raises(exceptions.NotFound):
            blob(world, "a").reload()

    def test_metadata_has_a_generation_of_its_own(self, world: World) -> None:
        made = blob(world, "a")
        made.upload_from_string(b"1")
        made.metadata = {"colour": "blue"}
        made.patch()
        assert (made.metageneration, world.json.get_blob("a").metadata) == (2, {"colour": "blue"})
        with pytest.raises(exceptions.PreconditionFailed):
            made.patch(if_metageneration_match=1)


class TestChecksums:
    @pytest.mark.parametrize("kind", ["md5", "crc32c"])
    def test_a_wrong_checksum_is_refused(self, world: World, kind: str) -> None:
        claimed = {"md5": "1B2M2Y8AsgTpgAmY7PhCfg==", "crc32c": "AAAAAA=="}[kind]  # checksums of empty content
        by_xml = world.ask("PUT", f"/{BUCKET}/a", data=b"1", headers={"x-goog-hash": f"{kind}={claimed}"})
        assert (by_xml.status_code, "<Code>BadDigest</Code>" in by_xml.text) == (400, True)
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=a"
        by_json = world.ask("POST", path, data=b"1", headers={"x-goog-hash": f"{kind}={claimed}"})
        assert (by_json.status_code, by_json.json()["error"]["errors"][0]["reason"]) == (400, "invalid")
        assert world.control.objects(BUCKET) == {}


class TestResumable:
    def upload(self, world: World, content: bytes) -> Any:
        made = blob(world, "large", chunk_size=MB)
        made.upload_from_file(io.BytesIO(content), size=None, if_generation_match=0)
        return made

    def test_chunk_by_chunk(self, world: World) -> None:
        content = os.urandom(3 * MB + 5)
        assert self.upload(world, content).size == len(content)
        assert len(world.control.calls("objects.resume")) == 4
        assert blob(world, "large").download_as_bytes() == content

    def test_a_lost_answer_makes_neither_a_gap_nor_a_second_object(self, world: World) -> None:
        world.control.fail("objects.resume", LOSE, times=1, skip=1)
        content = os.urandom(3 * MB + 5)
        self.upload(world, content)
        assert blob(world, "large").download_as_bytes() == content

    def test_the_condition_is_checked_at_completion(self, world: World) -> None:
        """The condition is checked when the object is completed, not when the upload begins."""
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=a&ifGenerationMatch=0"
        begun = world.ask("POST", path, json={})
        blob(world, "a").upload_from_string(b"first")
        where = begun.headers["Location"].removeprefix(world.gcp.url)
        done = world.ask("PUT", where, data=b"second", headers={"Content-Range": "bytes 0-5/6"})
        assert done.status_code == 412
        assert blob(world, "a").download_as_bytes() == b"first"

    def test_the_status_of_an_upload_can_be_queried(self, world: World) -> None:
        begun = world.ask("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=a", json={})
        where = begun.headers["Location"].removeprefix(world.gcp.url)
        quantum = 256 << 10
        world.ask("PUT", where, data=bytes(quantum), headers={"Content-Range": f"bytes 0-{quantum - 1}/*"})
        asked = world.ask("PUT", where, headers={"Content-Range": "bytes */*"})
        assert (asked.status_code, asked.headers["Range"]) == (308, f"bytes=0-{quantum - 1}")
        odd = world.ask("PUT", where, data=b"x", headers={"Content-Range": f"bytes {quantum}-{quantum}/*"})
        assert odd.status_code == 400  # neither the last chunk nor a multiple of 256 KiB


class TestMultipart:
    @pytest.mark.parametrize(
        ("parts", "numbers", "code"),
        [
            ([b"small", b"end"], [1, 2], "EntityTooSmall"),
            ([bytes(5 * MB), b"end"], [2, 1], "InvalidPartOrder"),
            ([bytes(5 * MB)], [1, 2], "InvalidPart"),
            ([bytes(5 * MB)], [], "InvalidPartOrder"),
        ],
    )
    def test_inconsistent_parts_are_refused(
        self, world: World, parts: list[bytes], numbers: list[int], code: str
    ) -> None:
        begun = world.ask("POST", f"/{BUCKET}/large?uploads")
        identity = begun.text.partition("<UploadId>")[2].partition("<")[0]
        tags: dict[int, str] = {}
        for number, part in enumerate(parts, start=1):
            sent = world.ask("PUT", f"/{BUCKET}/large?partNumber={number}&uploadId={identity}", data=part)
            tags[number] = sent.headers["ETag"]
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tags.get(number, 'none')}</ETag></Part>"
            for number in numbers
        )
        body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>"
        done = world.ask("POST", f"/{BUCKET}/large?uploadId={identity}", data=body.encode())
        assert (done.status_code, f"<Code>{code}</Code>" in done.text) == (400, True), done.text
        assert "large" not in world.control.objects(BUCKET)

    def test_an_aborted_one_leaves_nothing(self, world: World) -> None:
        def pieces() -> Iterator[memoryview]:
            yield memoryview(bytes(6 * MB))
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            obstore.put(world.xml, "large", pieces(), chunk_size=5 * MB)
        assert world.control.uploads() == 0


class TestRefusals:
    def test_unknown_calls_are_not_implemented(self, world: World) -> None:
        for method, path in (
            ("POST", f"/storage/v1/b/{BUCKET}/unknown"),
            ("PUT", f"/{BUCKET}/a?acl"),
        ):
            answer = world.ask(method, path)
            assert (answer.status_code, "StandinNotImplemented" in answer.text) == (501, True), path

    def test_a_token_is_needed_and_its_scope(self, world: World) -> None:
        assert requests.get(f"{world.gcp.url}/{BUCKET}/a", timeout=180).status_code == 401
        compute = google.auth.default(scopes=["https://www.googleapis.com/auth/compute"])[0]
        client = storage.Client(credentials=compute)
        with pytest.raises(exceptions.Forbidden, match="insufficient authentication scopes"):
            client.bucket(BUCKET).blob("a").download_as_bytes()

    def test_permissions_are_of_buckets_and_names(self, world: World) -> None:
        where = f"projects/_/buckets/{BUCKET}/objects/jobs/*"
        allowed = ["storage.objects.create", "storage.objects.get"]
        world.gcp.control.enforce({SUBMITTER: [{"permissions": allowed, "where": where}]})
        obstore.put(world.xml, "jobs/a", b"1")
        with pytest.raises(exceptions.Forbidden, match=r"storage\.objects\.create"):
            blob(world, "others/a").upload_from_string(b"1")
        with pytest.raises(PermissionDeniedError, match=r"storage\.objects\.delete"):
            obstore.put(world.xml, "jobs/a", b"2")  # replacing requires the permission to delete
        with pytest.raises(GenericError, match=r"storage\.objects\.list"):
            obstore.list(world.xml, "jobs").collect()

    def test_an_object_changes_once_a_second(self, world: World) -> None:
        blob(world, "a").upload_from_string(b"1")
        world.control.limit_updates(3_600.0)
        with pytest.raises(exceptions.TooManyRequests, match="rate limit for object mutation"):
            blob(world, "a").upload_from_string(b"2", retry=None)
        with pytest.raises(GenericError, match=r"429 Too Many Requests.*<Code>SlowDown</Code>"):
            obstore.put(world.hasty, "a", b"2")

    def test_rules_of_tests_are_answered_in_the_apis_own_form(self, world: World) -> None:
        world.control.fail("objects.get", error("AccessDenied", 403), times=2)
        with pytest.raises(exceptions.Forbidden):
            blob(world, "a").download_as_bytes()
        with pytest.raises(PermissionDeniedError, match="<Code>AccessDenied</Code>"):
            obstore.get(world.xml, "a")
