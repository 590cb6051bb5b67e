"""The price that `cluster up` uses for machines whose spot price is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.cli.cluster.settings import _plan
from cloudgpu.jobspecs.loading.cluster_file import load_cluster
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure


def test_a_bound_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    infra_outputs.save(Infrastructure("aws", "us-east-1", stack="s", owner="o", network="n"))
    file = tmp_path / "cluster.yaml"
    file.write_text("name: lab\nresources: {cloud: aws, region: us-east-1, accelerator: L4, market: spot, nodes: 2}\n")
    chosen = _plan(load_cluster(file), None, as_json=False)
    assert chosen.price is not None
    assert "at most 1.63 USD/h: Spot's own price is unknown" in capsys.readouterr().err
