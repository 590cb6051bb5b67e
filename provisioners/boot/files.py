"""Files that every machine gets to boot from: the bootstrap, the modules it imports, and the boot record."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import tarfile
import tokenize
from collections.abc import Mapping, Sequence
from importlib import resources

from . import shipped
from .record import BootRecord, boot_of
from .stop_script import NAME, stop_script

RECORD = "boot.json"
MAIN = "bootstrap.py"


def boot_files(record: BootRecord, pools: Mapping[str, Sequence[str]] | None = None) -> dict[str, bytes]:
    """Return name -> content of a machine's files, deterministically, the record first. `pools`: see container.py."""
    boot, fields = boot_of(record.cloud), dataclasses.asdict(record)
    if pools is not None:
        fields["pools"] = {pool: list(nodes) for pool, nodes in pools.items()}
    modules = {"bucket": boot.bucket, "host": boot.host, **({"group": boot.group} if record.fleet else {})}
    fields["modules"] = modules
    files = {name: _sent_module(name) for name in (MAIN, "common.py", *(f"{one}.py" for one in modules.values()))}
    files |= {} if boot.stop is None else {NAME: stop_script(boot.stop)}
    return {RECORD: json.dumps(fields, sort_keys=True).encode(), **files}


@functools.cache
def _sent_module(name: str) -> bytes:
    return without_prose(resources.files(shipped).joinpath(name).read_text(encoding="utf-8")).encode()


def without_prose(program: str) -> str:
    """Return a program without docstrings and comment lines, which would be half of the data sent.

    All other lines keep their numbers, for tracebacks. `ast` is not used because launches run in threads, in which it
    fails in CPython 3.11: "AST constructor recursion depth mismatch" (github.com/python/cpython/issues/106905).
    """
    tokens = list(tokenize.tokenize(io.BytesIO(program.encode()).readline))
    blank = {one.start[0] for one in tokens if one.type == tokenize.COMMENT and one.line.lstrip().startswith("#")}
    tokens = [one for one in tokens if one.type not in (tokenize.COMMENT, tokenize.NL)]
    for before, text, end, after in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        is_statement = (
            before.type in _BEFORE_STATEMENT and text.type == tokenize.STRING and end.type == tokenize.NEWLINE
        )
        is_alone = before.type == tokenize.INDENT and after.type == tokenize.DEDENT  # its block must not become empty
        if is_statement and not is_alone:
            blank.update(range(text.start[0], text.end[0] + 1))
    return "\n".join("" if number in blank else line for number, line in enumerate(program.split("\n"), 1))


_BEFORE_STATEMENT = frozenset({tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a reproducible .tar.gz of the files; it is half as large as the files compressed one by one."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)
