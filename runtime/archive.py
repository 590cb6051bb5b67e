"""Archive of the code folder: packed when the job is submitted, verified and unpacked on the machine.

Archives are reproducible: the same folder gives the same bytes, because names are sorted, and times and owners omitted.
An archive is untrusted when it is unpacked, because anyone with write access to the job dir can replace it.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .ignore import IgnoreRules

MAX_BYTES = 2_000_000_000
"""Maximum total size of the unpacked files, in bytes. Code is small; data belongs in an object store."""
MAX_FILES = 100_000
_MAX_RATIO = 200  # limit of unpacked : packed size, applied from _RATIO_FROM unpacked bytes
_RATIO_FROM = 256 << 20
_MAX_HEADER = 1 << 20  # bytes of an extended header, which tarfile reads into memory whole
_TRIES = 3  # attempts to pack while files change
_PIECE = 1 << 20

OnProgress = Callable[[int, int], None]
"""Called with (bytes packed, total bytes)."""


class ArchiveError(Exception):
    """A folder cannot be packed, or an archive cannot be unpacked; the message says what to do."""


class _ChangedError(Exception):
    """A file changed while it was packed."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed folder: a temporary file, which the caller deletes."""

    path: Path
    sha256: str
    size: int
    files: int


@dataclass(frozen=True, slots=True)
class _Item:
    """An archive member: `info` is its header, `source` the file that holds its content."""

    info: tarfile.TarInfo
    source: str | None = None


def pack(folder: Path, on_progress: OnProgress | None = None, without: Collection[Path] = ()) -> Archive:
    """Pack a folder into a temporary .tar.gz file. `without`: files that are left out. Raises ArchiveError."""
    root = folder.resolve()
    if not root.is_dir():
        raise ArchiveError(f"{folder} is no folder")
    for _ in range(_TRIES):
        try:
            return _pack_once(root, on_progress or (lambda _done, _total: None), _identities(without))
        except _ChangedError as error:
            changed = error
        except OSError as error:
            raise ArchiveError(
                f"{_shown(error.filename or root)} cannot be packed: {error.strerror or error}"
            ) from error
    raise ArchiveError(
        f"{_shown(str(changed))} changed while it was packed, {_TRIES} times: stop what writes it, "
        "or name it in .cloudgpuignore"
    )


def unpack(archive: Path, into: Path, sha256: str) -> None:
    """Unpack an archive into the new folder `into`, completely or not at all.

    Raises ArchiveError if the archive is damaged or unsafe, OSError for errors of the disk.
    """
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ArchiveError(f"the code archive is damaged: its sha256 is not {sha256}")
    partial = into.with_name(into.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _unpack_into(archive, partial)
        partial.rename(into)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise ArchiveError(f"the code archive cannot be read: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveError(f"the code archive holds two things of one name: {error.filename}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# --- packing ---------------------------------------------------------------------------------------------------------


def _identities(files: Collection[Path]) -> frozenset[tuple[int, int]]:
    """Return device and inode of the files that exist, by which they are known under any name."""
    found = set()
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _pack_once(root: Path, on_progress: OnProgress, without: frozenset[tuple[int, int]]) -> Archive:
    items = [item for item in _collect(root) if not without or _identity(item) not in without]
    total = sum(item.info.size for item in items)
    if total > MAX_BYTES:
        raise ArchiveError(_too_large(root, items, total))
    handle, name = tempfile.mkstemp(prefix="cloudgpu-code-", suffix=".tar.gz")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(items, file, on_progress, total)
        size = path.stat().st_size
        _check_ratio(total, size)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Archive(path, digest, size, sum(item.source is not None for item in items))


def _write(items: list[_Item], file: IO[bytes], on_progress: OnProgress, total: int) -> None:
    done = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for item in items:
            if item.source is None:
                tar.addfile(item.info)
            else:
                _add_file(tar, item)
            done += item.info.size
            on_progress(done, total)


def _add_file(tar: tarfile.TarFile, item: _Item) -> None:
    """Add a file to the archive. Raises _ChangedError if it was replaced or written to since it was listed."""
    source = cast("str", item.source)
    try:
        # The path may have become a named pipe (O_NONBLOCK: do not block) or a link (O_NOFOLLOW: do not follow).
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # deleted; now a link; now a socket
            raise
        raise _ChangedError(source) from error
    with os.fdopen(handle, "rb") as file:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode) or before.st_size != item.info.size:
            raise _ChangedError(source)
        try:
            tar.addfile(item.info, file)
        except OSError as error:
            if str(error) != "unexpected end of data":  # raised by tarfile for a file that shrank
                raise
            raise _ChangedError(source) from error
        after = os.fstat(handle)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _ChangedError(source)


def _identity(item: _Item) -> tuple[int, int] | None:
    """Return device and inode of a regular file; None: it is something else."""
    if item.source is None:
        return None
    try:
        status = os.lstat(item.source)
    except FileNotFoundError as error:
        raise _ChangedError(item.source) from error
    return status.st_dev, status.st_ino


def _collect(root: Path) -> list[_Item]:
    from .ignore import IgnoreError, IgnoreRules

    items: list[_Item] = []
    try:
        for item in _walk(root, IgnoreRules.above(root)):
            items.append(item)
            if len(items) > MAX_FILES:
                raise ArchiveError(_too_many(root, items))
    except IgnoreError as error:
        raise ArchiveError(str(error)) from error
    return sorted(items, key=lambda item: os.fsencode(item.info.name))


def _walk(root: Path, rules: IgnoreRules) -> Iterator[_Item]:
    pending = [(str(root), rules)]
    while pending:
        folder, above = pending.pop()
        rules = above.within(Path(folder))
        try:
            with os.scandir(folder) as listing:
                for entry in listing:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if rules.ignores(entry.path, is_folder):
                        continue
                    yield _item(root, entry)
                    if is_folder:
                        pending.append((entry.path, rules))
        except FileNotFoundError as error:
            raise _ChangedError(folder) from error


def _item(root: Path, entry: os.DirEntry[str]) -> _Item:
    info = tarfile.TarInfo(os.path.relpath(entry.path, root))
    status = entry.stat(follow_symlinks=False)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        return _Item(info, entry.path)
    if kind == stat.S_IFDIR:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif kind == stat.S_IFLNK:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, _link_target(root, entry.path)
    else:
        what = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe"}.get(kind, "a device")
        raise ArchiveError(
            f"{_shown(entry.path)} is {what} and cannot be shipped: remove it, or name it in .cloudgpuignore"
        )
    return _Item(info)


def _link_target(root: Path, path: str) -> str:
    """Return the target to store for a symbolic link. Raises ArchiveError if it points outside of the folder."""
    target = os.readlink(path)  # noqa: PTH115 - not normalised
    folder = os.path.dirname(path)  # noqa: PTH120
    lexical, real = os.path.normpath(os.path.join(folder, target)), os.path.realpath(path)  # noqa: PTH118
    if not _inside(real, str(root)):
        raise ArchiveError(
            f"{_shown(path)} is a link to {_shown(target)}, outside of the folder to ship: "
            "replace it by what it points to, or name it in .cloudgpuignore"
        )
    if not os.path.isabs(target) and _inside(lexical, str(root)):  # noqa: PTH117
        return target
    return os.path.relpath(real, folder)


def _too_large(root: Path, items: list[_Item], total: int) -> str:
    largest = sorted(items, key=lambda item: -item.info.size)[:5]
    names = ", ".join(f"{_shown(item.info.name)} ({item.info.size / 1e6:,.0f} MB)" for item in largest)
    return (
        f"{_shown(root)} holds {total / 1e6:,.0f} MB to ship, more than the {MAX_BYTES / 1e6:,.0f} MB allowed. "
        f"The largest: {names}. Name what the job does not need in .cloudgpuignore; keep data in an object store"
    )


def _too_many(root: Path, items: list[_Item]) -> str:
    counts: dict[str, int] = {}
    for item in items:
        top = item.info.name.partition("/")[0]
        counts[top] = counts.get(top, 0) + 1
    most = sorted(counts.items(), key=lambda count: -count[1])[:5]
    names = ", ".join(f"{_shown(name)} ({count:,})" for name, count in most)
    return (
        f"{_shown(root)} holds more than {MAX_FILES:,} files to ship. Most are in: {names}. "
        "Name what the job does not need in .cloudgpuignore"
    )


# --- unpacking -------------------------------------------------------------------------------------------------------


class _Header(tarfile.TarInfo):
    """Tar header that rejects large extended headers, which tarfile would read into memory whole."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) and self.size > _MAX_HEADER:
            raise ArchiveError("the code archive holds a header of absurd size")
        return cast("tarfile.TarInfo", super()._proc_member(tar))  # type: ignore[misc]


def _unpack_into(archive: Path, root: Path) -> None:
    """Extract files into new folders, then create the links: no file is ever written through a link.

    Raises ArchiveError.
    """
    packed, total, links = archive.stat().st_size, 0, []
    with tarfile.open(archive, mode="r|gz", tarinfo=_Header) as tar:
        for count, info in enumerate(tar, start=1):
            path = root.joinpath(*_safe_parts(info.name))
            total += info.size
            if count > MAX_FILES or total > MAX_BYTES:
                raise ArchiveError(f"the code archive holds more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes")
            _check_ratio(total, packed)
            if info.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif info.isreg() and not info.sparse:
                path.parent.mkdir(parents=True, exist_ok=True)
                _extract_file(tar, info, path)
            elif info.issym():
                links.append((path, info.linkname))
            else:
                raise ArchiveError(f"{info.name!r} in the code archive is neither a file, a folder nor a symbolic link")
    for path, target in links:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    # Links that are safe by themselves can escape in combination (x -> ., y -> x/..): check where each resolves to.
    for path, target in links:
        if Path(target).is_absolute() or not _inside(os.path.realpath(path), os.path.realpath(root)):
            raise ArchiveError(f"{str(path.relative_to(root))!r} in the code archive is a link that leads out of it")


def _extract_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    source = cast("IO[bytes]", tar.extractfile(info))
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, _PIECE)
    path.chmod(0o755 if info.mode & stat.S_IXUSR else 0o644)


def _safe_parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or not parts:
        raise ArchiveError(f"{name!r} in the code archive is a name that leads out of it")
    return parts


def _check_ratio(unpacked: int, packed: int) -> None:
    if unpacked > _RATIO_FROM and unpacked > packed * _MAX_RATIO:
        raise ArchiveError(
            f"the code archive would unpack to more than {_MAX_RATIO} times its size: that looks like an attack; "
            "keep files that consist of one repeated byte out of it"
        )


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)


def _shown(path: str | Path) -> str:
    """Return a path as valid Unicode, with undecodable bytes replaced, for terminals and JSON."""
    return os.fsencode(path).decode(errors="replace")
