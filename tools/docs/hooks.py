"""Hooks of the documentation's site (mkdocs.yml): generated pages, and links to files of the repository."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cloudgpu.tools.docs import command_pages, job_file_pages, python_pages

ROOT = Path(__file__).parents[2]
PAGES = {
    "reference/commands.md": command_pages.render,
    "reference/python.md": python_pages.render,
    "reference/job-file-fields.md": job_file_pages.render,
}
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")
_log = logging.getLogger("mkdocs.hooks.cloudgpu")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated from the program."""
    for name, render in PAGES.items():
        files.append(File.generated(config, name, content=render()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs' signature
    """Replace links to files outside of docs/ by URLs of the repository.

    A link to a file that does not exist is logged as a warning, which makes the strict build fail.
    """
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def replace(match: re.Match[str]) -> str:
        target = os.path.normpath(folder / match[1])
        if target.startswith("docs/"):
            return match[0]
        path = ROOT / target
        if not path.exists():
            _log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        return f"]({config.extra['repository']}/{'tree' if path.is_dir() else 'blob'}/main/{target}"

    return _LINK.sub(replace, markdown)
