"""The batch script in docs/guides/standalone.md is the tested one."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_slurm_script_of_the_page_is_that_of_the_examples() -> None:
    page = (ROOT / "docs" / "guides" / "standalone.md").read_text()
    shown = [block.partition("```")[0] for block in page.split("```bash\n")[1:]]
    assert (ROOT / "examples" / "slurm" / "train.sbatch").read_text() in shown
