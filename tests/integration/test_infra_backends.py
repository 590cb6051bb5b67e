"""Stacks that a team shares in a bucket of S3, Cloud Storage or Blob Storage, over the wire.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH. The buckets are in the
clouds' stand-ins, and the provider keeps its resources in this process. A colleague is an empty state directory.
"""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import boto3
import pytest

from cloudgpu.storage.objects import JobDir
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.azurite import ACCOUNT, KEY, Azurite, a_token
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.gcs.control import GcsControl
from cloudgpu.tests.standins.long_mode import LONG
from cloudgpu.tests.standins.pulumi.serving import attached
from cloudgpu.tests.standins.toy_desk import Desk
from cloudgpu.tests.standins.toy_stack import STACK, toys

pytestmark = pytest.mark.timeout(900)

BUCKET, FOLDER = "stacks-of-a-team", "cloudgpu"
STATE = f".pulumi/stacks/cloudgpu/{STACK}.json"
LOCKS = f".pulumi/locks/organization/cloudgpu/{STACK}"


class Place(NamedTuple):
    """Bucket of one cloud's stand-in."""

    url: str
    """URL of the folder, as a team configures it."""
    job_dir: str
    """URL of the same folder for cloudgpu's own client."""
    environ: Mapping[str, str]
    missing: str
    """URL of a bucket that does not exist."""


@contextmanager
def s3(_folder: Path) -> Iterator[Place]:
    with Aws() as aws:
        patch = pytest.MonkeyPatch()
        for name, value in aws.environ.items():
            patch.setenv(name, value)
        boto3.session.Session().client("s3").create_bucket(Bucket=BUCKET)
        patch.undo()
        environ = {name: value for name, value in aws.environ.items() if name != "AWS_ENDPOINT_URL"}
        query = f"region=us-east-1&endpoint={aws.url}&s3ForcePathStyle=true"
        variables = {**environ, "AWS_ENDPOINT_URL": aws.url}
        yield Place(
            f"s3://{BUCKET}/{FOLDER}?{query}", f"s3://{BUCKET}/{FOLDER}", variables, f"s3://nobodys-bucket?{query}"
        )


@contextmanager
def gs(folder: Path) -> Iterator[Place]:
    with Gcp() as gcp:
        GcsControl(gcp.url).make_bucket(BUCKET, public=True)
        url = f"gs://{BUCKET}/{FOLDER}"
        yield Place(url, url, gcp.environ(folder / "keys"), "gs://nobodys-bucket")


@contextmanager
def azblob(folder: Path) -> Iterator[Place]:
    with Azurite(folder) as blobs:
        blobs.make_container(BUCKET)
        # The key is the only login: managed identities, with which machines log in, are not tried.
        environ = {**blobs.environ(""), "AZURE_STORAGE_KEY": KEY, "AZURE_TOKEN_CREDENTIALS": "dev"}
        query = f"storage_account={ACCOUNT}&domain=127.0.0.1:{blobs.port}&protocol=https"
        yield Place(
            f"azblob://{BUCKET}/{FOLDER}?{query}",
            f"az://{BUCKET}@{ACCOUNT}/{FOLDER}",
            environ,
            f"azblob://nobodys-bucket?{query}",
        )


PLACES: Mapping[str, Callable[[Path], AbstractContextManager[Place]]] = {"s3": s3, "gs": gs, "azblob": azblob}
LOCKED = list(PLACES) if LONG else ["s3"]
"""Places in which locks are tested. The same code finds and breaks locks in every store."""


class Team:
    """A desk whose stacks are in a bucket, and the bucket."""

    def __init__(self, desk: Desk, place: Place) -> None:
        self.desk, self.place = desk, place
        self.bucket = JobDir(place.job_dir)

    @property
    def locks(self) -> list[str]:
        return list(self.bucket.list(LOCKS))

    def lock_as(self, **who: object) -> str:
        """Write a lock, as the engine of another user would."""
        held = {"pid": 4242, "username": "ann", "hostname": "elsewhere", "timestamp": "2026-11-22T06:00:00Z", **who}
        self.bucket.put(f"{LOCKS}/theirs.json", json.dumps(held).encode())
        return f"{LOCKS}/theirs.json"


@pytest.fixture(params=PLACES)
def team(
    engine_kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Team]:
    provider = toys()
    with PLACES[request.param](tmp_path) as place, attached(provider) as environ:
        for name, value in place.environ.items():
            monkeypatch.setenv(name, value)
        passphrase = tmp_path / "passphrase"
        passphrase.write_text("of the whole team")
        shared = {"CLOUDGPU_INFRA_BACKEND": place.url, "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase)}
        yield Team(Desk(engine_kind, tmp_path, provider, {**environ, **shared}), place)
        provider.cloud.hurry.set()


@pytest.mark.on_engine
def test_a_colleague_continues_with_the_same_stack(team: Team) -> None:
    mine, hers = team.desk, team.desk.colleague()
    mine.up()
    assert team.bucket.exists(STATE)
    seen = hers.run("contents").value
    assert seen == mine.run("contents").value
    assert sorted(one["name"] for one in seen["resources"]) == ["toy-0", "toy-1"]
    assert sorted(change.split()[0] for change in hers.up("--size", "3")["changes"]) == ["update", "update"]
    assert sorted(change.split()[0] for change in mine.up("--size", "3")["changes"]) == ["same", "same"]
    assert (mine.sizes, mine.shelf.made) == ([3, 3], 2)
    assert hers.run("down").value["resources"] == []
    assert (mine.sizes, team.locks, team.bucket.exists(STATE)) == ([], [], False)
    assert not (mine.home / "infra/state").exists()


@pytest.mark.parametrize("team", LOCKED, indirect=True)
def test_only_the_lock_of_ones_own_killed_engine_is_broken(team: Team) -> None:
    team.desk.kill_in_the_middle()
    [left] = team.locks
    if team.desk.is_double:  # Pulumi's own may break locks of this host, which the colleague shares
        refused = team.desk.colleague().run("up", "--count", "1")
        assert refused.code == 6
        assert f"another user works on the stack {STACK}" in refused.stderr
        assert team.locks == [left]
    again = team.desk.run("up", "--count", "1")
    assert again.code == 0, again.stderr
    assert "broke the lock of your earlier run, which was killed" in again.stderr
    assert (team.desk.sizes, team.locks) == ([1], [])


@pytest.mark.parametrize("team", LOCKED, indirect=True)
def test_the_lock_of_another_user_is_respected(team: Team) -> None:
    team.desk.up()
    lock = team.lock_as()
    refused = team.desk.run("up", "--size", "2")
    assert refused.code == 6
    assert "ann@elsewhere (process 4242), since 2026-11-22T06:00:00Z" in refused.stderr
    assert f"pulumi cancel --stack organization/cloudgpu/{STACK}" in refused.stderr
    assert f"PULUMI_BACKEND_URL={shlex.quote(team.place.url)} pulumi" in refused.stderr
    assert (team.desk.sizes, team.locks) == ([1, 1], [lock])
    team.lock_as(hostname=socket.gethostname(), pid=2**22 - 1)
    assert team.desk.run("up", "--size", "2").code in ({6} if team.desk.is_double else {0, 6})


def test_a_missing_bucket_is_reported(team: Team) -> None:
    team.desk.environ["CLOUDGPU_INFRA_BACKEND"] = team.place.missing
    failed = team.desk.run("up")
    assert failed.code == 6
    said, hint = failed.stderr.splitlines()[-2:]
    missing = "was not found: its bucket does not exist, or these credentials have no access to it"
    assert said == f"error: {team.place.missing} {missing}"
    assert "CLOUDGPU_INFRA_BACKEND" in hint
    assert team.desk.shelf.made == 0


@pytest.mark.parametrize("team", ["azblob"], indirect=True)
def test_the_login_of_az_opens_the_container(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team.desk.up()
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    none = team.desk.run("contents")
    assert none.code == 6
    assert f"{team.place.url} cannot be opened: Pulumi's engine finds no credentials for it" in none.stderr
    login = {"accessToken": a_token(), "expiresOn": "2099-01-01 00:00:00.000000", "expires_on": 4070908800}
    az = tmp_path / "bin/az"
    az.write_text(f"#!/bin/sh\necho '{json.dumps(login)}'\n")
    az.chmod(0o755)
    seen = team.desk.run("contents")
    assert seen.code == 0, seen.stderr
    assert sorted(one["name"] for one in seen.value["resources"]) == ["toy-0", "toy-1"]


@pytest.mark.parametrize("team", ["gs"], indirect=True)
def test_without_the_teams_passphrase_nothing_is_done(team: Team, tmp_path: Path) -> None:
    """The state contains secrets, because the engine checks no passphrase for a state without any."""
    team.desk.up("--secret")
    other = tmp_path / "another-passphrase"
    other.write_text("not the team's")
    hers = team.desk.colleague()
    hers.environ["PULUMI_CONFIG_PASSPHRASE_FILE"] = str(other)
    wrong = hers.run("up", "--size", "2", "--secret")
    assert wrong.code == 6
    assert "passphrase" in wrong.stderr
    del hers.environ["PULUMI_CONFIG_PASSPHRASE_FILE"]
    none = hers.run("up", "--size", "2", "--secret")
    assert none.code == 2
    assert "PULUMI_CONFIG_PASSPHRASE" in none.stderr
    assert (team.desk.sizes, team.locks) == ([1, 1], [])
