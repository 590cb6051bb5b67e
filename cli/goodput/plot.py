"""Chart of `cloudgpu goodput JOB --plot FILE.svg`: one bar per attempt, scaled to its paid time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ..shared.text import duration
from .view import PARTS, Part

if TYPE_CHECKING:
    from ...control.accounting.report import AttemptReport, Report

_WIDTH, _LEFT, _RIGHT = 960, 150, 90
_TOP, _ROW, _BAR = 84, 34, 20
_LEGEND_ROW, _LEGEND_COLUMNS = 22, 4
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#263238}.title{font-size:18px;font-weight:600}.small{fill:#607d8b}"
    "@media(prefers-color-scheme:dark){.page{fill:#14181b}text{fill:#eceff1}.small{fill:#90a4ae}}"
)


def svg(title: str, report: Report) -> str:
    """Return the chart as a complete SVG document."""
    used = [part for part in PARTS if getattr(report.times, part.name) > 0]
    legend_rows = -(-len(used) // _LEGEND_COLUMNS)
    legend_top = _TOP + _ROW * len(report.attempts) + 16
    height = legend_top + _LEGEND_ROW * legend_rows + 16
    longest = max((attempt.seconds for attempt in report.attempts), default=0.0) or 1.0
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="24" y="34">{escape(title)}</text>',
        f'<text class="small" x="24" y="58">{escape(_subtitle(report))}</text>',
    ]
    for index, attempt in enumerate(report.attempts):
        lines += _attempt(attempt, _TOP + _ROW * index, (_WIDTH - _LEFT - _RIGHT) / longest)
    for index, part in enumerate(used):
        x = 24 + (index % _LEGEND_COLUMNS) * (_WIDTH - 48) // _LEGEND_COLUMNS
        lines += _legend(part, report, x, legend_top + _LEGEND_ROW * (index // _LEGEND_COLUMNS))
    return "\n".join([*lines, "</svg>", ""])


def _subtitle(report: Report) -> str:
    goodput = "unknown" if report.goodput is None else f"{report.goodput:.1%}"
    possible = "" if report.optimum is None else f" ({report.optimum.goodput:.1%} possible)"
    return f"goodput {goodput}{possible}, {duration(report.paid_seconds)} paid"


def _attempt(attempt: AttemptReport, top: int, scale: float) -> list[str]:
    middle = top + _BAR - 5
    lines = [f'<text x="24" y="{middle}">{attempt.number} {escape(attempt.outcome or "running")}</text>']
    x = float(_LEFT)
    for part in PARTS:
        seconds = getattr(attempt.times, part.name)
        if seconds > 0:
            tip = f"<title>{part.label}: {duration(seconds)}</title>"
            width = seconds * scale
            lines.append(
                f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" fill="{part.color}">{tip}</rect>'
            )
            x += width
    return [*lines, f'<text class="small" x="{x + 8:.2f}" y="{middle}">{duration(attempt.seconds)}</text>']


def _legend(part: Part, report: Report, x: int, top: int) -> list[str]:
    share = getattr(report.times, part.name) / (report.paid_seconds or 1.0)
    return [
        f'<rect x="{x}" y="{top}" width="12" height="12" fill="{part.color}"/>',
        f'<text x="{x + 18}" y="{top + 11}">{part.label} {share:.1%}</text>',
    ]
