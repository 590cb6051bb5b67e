"""Time to load and validate a thousand different job files in one process."""

from __future__ import annotations

from cloudgpu.jobspecs.loading.loader import load_text

from .measure import Row, seconds

SPEC = """\
name: job-{n}
resources:
  accelerator: [L4:1, T4:1]
  cloud: [gcp, aws, azure]
  region: us-central1
  market: [spot, on-demand]
  nodes: {nodes}
  disk: 100GB
code: null
setup: pip install -r requirements.txt
run: python train.py
args: [--epochs, "{n}"]
env: {{LR: "0.01", SEED: "{n}"}}
launcher: auto
job_dir: s3://bucket/jobs
checkpoint: {{every: auto, keep: 3}}
retry: {{preemption: unlimited, failure: 1}}
limits: {{duration: 12h, cost: 50 USD, price: 5 USD/h}}
"""


def rows() -> list[Row]:
    texts = [SPEC.format(n=n, nodes=1 + n % 8) for n in range(1000)]
    load_text(texts[0])  # warms the tables, which are read once per process

    def load_all() -> None:
        for text in texts:
            load_text(text)

    took = sorted(seconds(load_all) for _ in range(5))[2]
    return [
        Row("1,000 job files of 18 lines, one process", took, 0.3, "s", "median of 5; different files, tables warm")
    ]
