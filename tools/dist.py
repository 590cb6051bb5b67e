"""Build the release of the current commit: wheel, sdist, the image's context and their checksums.

    python -m tools.dist dist                 # what `make dist` runs
    python -m tools.dist dist --tag v0.1.0    # fail unless the version is that of the tag

The build is reproducible: the same commit and the same versions of the build tools give the same bytes, independent of
the folder, the umask and the time. If there are uncommitted changes, nothing is built.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cloudgpu import __version__
from cloudgpu.cli.image.build import Base, make_context

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
IMAGE_BASES = (Base("3.11", "x86_64"), Base("3.12", "x86_64"))
"""Python version and architecture of the base images; an image context is released for each."""


class ReleaseError(Exception):
    """The commit cannot be released; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="empty or missing folder for the files")
    parser.add_argument("--tag", help="tag of the release, e.g. v0.1.0: must match the version and the changelog")
    parser.add_argument(
        "--no-image", action="store_true", help="leave out the image's contexts (they need a package index)"
    )
    given = parser.parse_args(arguments)
    try:
        if given.tag is not None:
            check_tag(given.tag)
        build(given.folder.resolve(), image=not given.no_image)
    except ReleaseError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    print((given.folder / "SHA256SUMS").read_text(), end="")
    return 0


def check_tag(tag: str) -> None:
    """Raise ReleaseError unless the tag is the package's version and the changelog has a dated section for it."""
    if tag != f"v{__version__}":
        raise ReleaseError(f"the tag is {tag}, but __init__.py has version {__version__}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(__version__)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise ReleaseError(f'CHANGELOG.md has no section "## {__version__} - YYYY-MM-DD"')


def build(folder: Path, *, image: bool) -> None:
    """Write wheel, sdist, image contexts (if `image`) and SHA256SUMS of the current commit into an empty folder.

    Raises ReleaseError if the folder is not empty, or if there are uncommitted changes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty")
    if changed := _git("status", "--porcelain"):
        raise ReleaseError(f"there are uncommitted changes:\n{changed}")
    epoch = int(_git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="cloudgpu-dist-") as name:
        tree = Path(name) / "cloudgpu"
        _export(tree)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
        subprocess.run(command, check=True, env=environment, umask=0o022, stdout=subprocess.DEVNULL)
        (sdist,) = folder.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(Path(name) / "sdist", filter="data")
        _pack(Path(name) / "sdist", sdist, epoch)
        (wheel,) = folder.glob("*.whl")
        for base in IMAGE_BASES if image else ():
            context = Path(name) / f"cloudgpu-image-{__version__}-python{base.python}-{base.machine}"
            context.mkdir()
            make_context(context, base, wheel=wheel, constraints=CONSTRAINTS)
            _pack(context, folder / f"{context.name}.tar.gz", epoch)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))


def _export(tree: Path) -> None:
    """Write the files of the current commit, with the same modes on every computer."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    tree.mkdir()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tree, filter="data")
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _pack(folder: Path, target: Path, epoch: int) -> None:
    """Write a reproducible .tar.gz of a folder: it depends only on the files' names, contents and executable bits."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
            member = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(path.read_bytes()) if member.isfile() else None)
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
