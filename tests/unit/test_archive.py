"""Packing and unpacking the code folder: what is included, excluded and refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import socket
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.runtime import archive as module
from cloudgpu.runtime.archive import ArchiveError, pack, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my code; rm -rf ü"
    made.mkdir()
    return made


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(folder: Path) -> set[str]:
    """Return the files and links that the machine gets from a folder."""
    packed = pack(folder)
    with tarfile.open(packed.path) as tar:
        found = {info.name for info in tar if not info.isdir()}
    packed.path.unlink()
    return found


def there_and_back(folder: Path, into: Path) -> None:
    packed = pack(folder)
    unpack(packed.path, into, packed.sha256)
    packed.path.unlink()


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    fill(folder, "train.py", "pkg/a b.py", "pkg/ünï☃'\";$(x).py", "-rf", "deep/" * 60 + "x")
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o700)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("pkg/run.sh")
    (folder / "dangling").symlink_to("not/there/yet")
    (folder / "absolute").symlink_to(folder / "pkg")
    raw = os.fsencode(folder) + b"/not-\xff-utf8"
    os.close(os.open(raw, os.O_CREAT))
    there_and_back(folder, tmp_path / "code")
    got = tmp_path / "code"
    assert (got / "pkg" / "ünï☃'\";$(x).py").read_text() == "pkg/ünï☃'\";$(x).py"
    assert (got / "pkg" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (got / "train.py").stat().st_mode & 0o777 == 0o644
    assert (got / "empty").is_dir()
    assert [str((got / name).readlink()) for name in ("link", "dangling", "absolute")] == [
        "pkg/run.sh",
        "not/there/yet",
        "pkg",
    ]
    assert (got / os.fsdecode(b"not-\xff-utf8")).is_file()
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, "code"}, "nothing else is left behind"


def test_the_same_folder_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    fill(folder, "b.py", "a/c.py", "a/b.py", "A.py")
    first = pack(folder)
    for path in folder.rglob("*.py"):
        os.utime(path, (1, 1))
    again = pack(folder)
    other = tmp_path / "other"
    fill(other, "A.py", "a/b.py", "a/c.py", "b.py")
    assert first.sha256 == again.sha256 == pack(other).sha256
    assert hashlib.sha256(first.path.read_bytes()).hexdigest() == first.sha256
    assert (first.files, first.size) == (4, first.path.stat().st_size)


def test_ignore_files_at_every_level(folder: Path) -> None:
    fill(
        folder,
        ".git/config",
        "sub/.git",
        "a.pyc",
        "keep.pyc",
        "logs/x",
        "sub/logs/x",
        "sub/a.pyc",
        "sub/b.tmp",
        "data/x/y",
    )
    fill(folder, "sub/deep/b.tmp", "model.bin", "sub/model.bin", "#odd", "sp ace")
    (folder / ".gitignore").write_text("# comment\n*.pyc\n!keep.pyc\n/logs/\ndata\nmodel.bin\n\\#odd\r\n")
    (folder / ".cloudgpuignore").write_text("!/model.bin\nsp ace\n")
    (folder / "sub" / ".gitignore").write_text("*.tmp\n!a.pyc\n")
    assert names(folder) == {
        ".gitignore",
        ".cloudgpuignore",
        "keep.pyc",
        "model.bin",
        "sub/.gitignore",
        "sub/a.pyc",
        "sub/logs/x",
    }


def test_rules_above_hold_within_a_repository_only(tmp_path: Path) -> None:
    fill(
        tmp_path,
        "repo/.git/config",
        "repo/examples/digits/train.py",
        "repo/examples/digits/x.pyc",
        "repo/examples/digits/y.log",
    )
    (tmp_path / ".gitignore").write_text("*.py\n")
    (tmp_path / "repo" / ".gitignore").write_text("*.pyc\n")
    (tmp_path / "repo" / "examples" / ".gitignore").write_text("*.log\n")
    assert names(tmp_path / "repo" / "examples" / "digits") == {"train.py"}
    (tmp_path / "repo" / ".gitignore").write_text("examples/\n")
    assert names(tmp_path / "repo" / "examples" / "digits") == {"train.py", "x.pyc", "y.log"}, (
        "it was asked for by name"
    )


def test_an_invalid_pattern_names_its_folder(folder: Path) -> None:
    (folder / ".cloudgpuignore").write_text("!\n")
    with pytest.raises(ArchiveError, match="cloudgpuignore is invalid"):
        pack(folder)


@pytest.mark.parametrize("target", ["/etc", "..", "../secret", "a/../../secret", "self"])
def test_links_out_are_refused(folder: Path, target: str) -> None:
    fill(folder.parent, "secret")
    fill(folder, "a/x")
    (folder / "self").symlink_to("../secret")
    (folder / "link").symlink_to(target)
    with pytest.raises(ArchiveError, match=r"is a link to .*, outside of the folder"):
        pack(folder)
    (folder / ".cloudgpuignore").write_text("link\nself\n")
    assert names(folder) == {".cloudgpuignore", "a/x"}


def test_sockets_and_pipes_are_refused(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ArchiveError, match="pipe is a named pipe and cannot be shipped"):
        pack(folder)
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)  # the path of a Unix socket is limited to 107 bytes
        server.bind("sock")
        os.chdir(here)
        with pytest.raises(ArchiveError, match="sock is a socket"):
            pack(folder)


def test_too_much_names_the_largest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder, "small.py", "data/few")
    with (folder / "data" / "weights.bin").open("wb") as file:
        file.truncate(3_000_000_000)
    with pytest.raises(
        ArchiveError, match=r"3,000 MB to ship, more than the 2,000 MB allowed. The largest: data/weights.bin"
    ):
        pack(folder)
    monkeypatch.setattr(module, "MAX_FILES", 2)
    with pytest.raises(ArchiveError, match=r"more than 2 files to ship. Most are in: data"):
        pack(folder)


@pytest.mark.parametrize("what", ["missing", "file"])
def test_no_folder(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="is no folder"):
        pack(tmp_path / what)


def test_an_empty_folder(folder: Path, tmp_path: Path) -> None:
    there_and_back(folder, tmp_path / "code")
    assert list((tmp_path / "code").iterdir()) == []


def test_progress(folder: Path) -> None:
    fill(folder, "a", "bb", "ccc")
    calls: list[tuple[int, int]] = []
    pack(folder, lambda done, total: calls.append((done, total)))
    assert calls == [(1, 6), (3, 6), (6, 6)]


def test_a_file_that_changes_all_the_time(folder: Path) -> None:
    (folder / "growing.log").write_bytes(os.urandom(2_000_000))
    fill(folder, "train.py")
    stop = threading.Event()

    def grow() -> None:
        with (folder / "growing.log").open("ab") as file:
            while not stop.is_set():
                file.write(b"x" * 100)
                file.flush()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        with pytest.raises(ArchiveError, match=r"growing.log changed while it was packed, 3 times"):
            pack(folder)
    finally:
        stop.set()
        writer.join()
    assert pack(folder).files == 2


# --- hostile archives ------------------------------------------------------------------------------------------------


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(data), link
    return info, data


def make(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()


SYM, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
HOSTILE = {
    "traversal": [member("../out")],
    "traversal inside": [member("a/../../out")],
    "absolute": [member("/tmp/out")],
    "no name": [member(".")],
    "link out": [member("x", SYM, link="../secret")],
    "absolute link": [member("x", SYM, link="/etc/passwd")],
    "links that lead out together": [member("x", SYM, link="."), member("y", SYM, link="x/..")],
    "writing through a link": [member("x", SYM, link=".."), member("x/out")],
    "hard link": [member("a"), member("b", HARD, link="a")],
    "hard link out": [member("b", HARD, link="../secret")],
    "device": [member("d", tarfile.CHRTYPE)],
    "block device": [member("d", tarfile.BLKTYPE)],
    "pipe": [member("d", tarfile.FIFOTYPE)],
    "twice": [member("a"), member("a")],
    "file as folder": [member("a"), member("a/b")],
    "link over a file": [member("a"), member("a", SYM, link="b")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_archives_are_refused_and_leave_nothing(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "secret").write_text("secret")
    sha256 = make(tmp_path / "code.tar.gz", member("good.py", data=b"x"), *members)
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "code.tar.gz", tmp_path / "code", sha256)
    assert {path.name for path in tmp_path.iterdir()} == {"secret", "code.tar.gz"}
    assert (tmp_path / "secret").read_text() == "secret"


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = make(tmp_path / "size", member("zeros", data=bytes(300 << 20)))
    with pytest.raises(ArchiveError, match="more than 200 times its size"):
        unpack(tmp_path / "size", tmp_path / "code", sha256)
    monkeypatch.setattr(module, "MAX_FILES", 10)
    sha256 = make(tmp_path / "count", *[member(f"{number}") for number in range(20)])
    with pytest.raises(ArchiveError, match="more than 10 files"):
        unpack(tmp_path / "count", tmp_path / "code", sha256)


def test_a_header_that_would_fill_the_memory(tmp_path: Path) -> None:
    header, _ = member("././@PaxHeader", tarfile.XHDTYPE)
    header.size = 1 << 32
    with gzip.open(tmp_path / "bomb", "wb") as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(10 << 20))
    sha256 = hashlib.sha256((tmp_path / "bomb").read_bytes()).hexdigest()
    with pytest.raises(ArchiveError, match="header of absurd size"):
        unpack(tmp_path / "bomb", tmp_path / "code", sha256)


def test_another_sha256(tmp_path: Path) -> None:
    make(tmp_path / "code.tar.gz", member("a"))
    with pytest.raises(ArchiveError, match="damaged: its sha256"):
        unpack(tmp_path / "code.tar.gz", tmp_path / "code", "0" * 64)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [cut, lambda _: b"", lambda _: b"no archive at all"])
def test_damaged_archives(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The damaged archive has a matching sha256. It must raise a clear error and leave no files."""
    path = tmp_path / "code.tar.gz"
    make(path, member("a", data=random.Random(1).randbytes(5_000)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArchiveError):
        unpack(path, tmp_path / "code", hashlib.sha256(path.read_bytes()).hexdigest())
    assert not (tmp_path / "code").exists()
