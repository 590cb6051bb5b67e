"""The pictures in the README show what the commands print today."""

from __future__ import annotations

from cloudgpu.tools.docs import pictures

README = (pictures.ROOT / "README.md").read_text()


def test_the_plan_is_what_plan_prints() -> None:
    """The picture shows the plan of the job file beside it. Redraw: `python -m tools.docs.pictures`."""
    assert pictures.JOB in README and "docs/images/plan.svg" in README
    assert pictures.plan() == (pictures.IMAGES / "plan.svg").read_text()


def test_the_report_is_of_an_interrupted_job() -> None:
    shown = (pictures.IMAGES / "report.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "2 attempts, 1 interrupted" in shown and "1,350 done, 0 redone" in shown


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
