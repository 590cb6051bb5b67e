"""Draw the pictures in docs/images from the output of commands: `python -m tools.docs.pictures`, in the root folder.

The picture of a plan depends only on the shipped tables. The picture of a report is made from a run of examples/digits
with an interruption, so its times and costs differ from run to run.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
COLUMNS = 100
INTERRUPTED_AT = 500
"""Step, out of 1,350, at which the job of the report gets its preemption notice."""
JOB = """\
name: tinylm
resources:
  accelerator: A100-80GB:8
  cloud: [gcp, aws, azure]
  market: spot
run: python train.py
job_dir: {gcp: gs://my-bucket/jobs, aws: s3://my-bucket/jobs, azure: az://jobs@myaccount/runs}
limits: {duration: 12h, price: 25 USD/h}
"""
_CHARACTER_WIDTH, _LINE_HEIGHT, _MARGIN = 7.8, 18, 16
"""Sizes in pixels, for a font of 13 pixels."""
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}
_BACKGROUND, _FOREGROUND = "#161b22", "#d0d7de"
_STYLE = re.compile(r"\x1b\[([\d;]*)m")
_OTHER_CONTROLS = re.compile(r"\x1b\[[\d;?]*[A-Za-ln-z]|\r")


def plan() -> str:
    """Return the picture of `cloudgpu plan`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.yaml").write_text(JOB)
        environ = {**os.environ, "CLOUDGPU_HOME": folder}
        return draw("cloudgpu plan job.yaml", on_terminal(["plan", "job.yaml"], environ, folder))


def report() -> str:
    """Run examples/digits with a preemption, and return the picture of `cloudgpu status` after its end."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "CLOUDGPU_HOME": folder}
        job = json.loads(_output(["submit", str(ROOT / "examples/digits/job.yaml"), "--detach", "--json"], environ))[
            "id"
        ]
        while (json.loads(_output(["status", job, "--json"], environ))["step"] or 0) < INTERRUPTED_AT:
            time.sleep(0.2)
        _output(["preempt", job, "--after", "10s"], environ)
        _output(["wait", job], environ)
        printed = on_terminal(["status", job], environ, folder)
        return draw("cloudgpu status digits", printed.replace(folder, "~/.local/share/cloudgpu"))


def _output(words: list[str], environ: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "cloudgpu", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ).stdout


def on_terminal(words: list[str], environ: Mapping[str, str], folder: str) -> str:
    """Return the stdout of a command on a terminal of COLUMNS columns, with control sequences; stderr is dropped.

    Raises RuntimeError if the command fails.
    """
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    kept = {name: value for name, value in environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cloudgpu", *words],
        stdout=writer,
        stderr=subprocess.DEVNULL,
        env={**kept, "TERM": "xterm-256color"},
        cwd=folder,
    )
    os.close(writer)
    printed = b""
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:  # EIO: the terminal's other side is closed
            break
        if not part:
            break
        printed += part
    os.close(reader)
    if process.wait():
        raise RuntimeError(f"cloudgpu {' '.join(words)} ended with exit code {process.returncode}")
    return printed.decode()


def draw(command: str, printed: str) -> str:
    """Return an SVG picture of a terminal with a command and its output."""
    lines = [f"\x1b[1m$ {command}\x1b[0m", *_OTHER_CONTROLS.sub("", printed).rstrip("\n").split("\n")]
    width = round(COLUMNS * _CHARACTER_WIDTH + 2 * _MARGIN)
    height = len(lines) * _LINE_HEIGHT + 2 * _MARGIN
    text = "\n".join(
        f'<text y="{_MARGIN + _LINE_HEIGHT * number + 13}">{"".join(_spans(line))}</text>'
        for number, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{html.escape(command)}">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>\n'
        f'<g font-family="{_FONTS}" font-size="13" fill="{_FOREGROUND}">\n{text}\n</g>\n</svg>\n'
    )


def _spans(line: str) -> Iterator[str]:
    """Yield the pieces of a line as <tspan>s with a fixed position and width, independent of the viewer's font."""
    column, style = 0, ""
    pieces = _STYLE.split(line)
    for text, codes in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if text.strip():
            x, length = _MARGIN + column * _CHARACTER_WIDTH, len(text) * _CHARACTER_WIDTH
            yield f'<tspan x="{x:.1f}" textLength="{length:.1f}"{style}>{_text(text)}</tspan>'
        column += len(text)
        numbers = [int(code or 0) for code in codes.split(";")]
        bold = ' font-weight="bold"' if 1 in numbers else ""
        style = bold + "".join(f' fill="{_COLOURS[number]}"' for number in numbers if number in _COLOURS)


def _text(text: str) -> str:
    """Return text escaped for XML, with no-break spaces, because viewers collapse ordinary ones."""
    return html.escape(text, quote=False).replace(" ", "\N{NO-BREAK SPACE}")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "plan.svg").write_text(plan())
    (IMAGES / "report.svg").write_text(report())


if __name__ == "__main__":
    main()
