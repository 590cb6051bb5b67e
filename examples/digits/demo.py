"""The main job, end to end: submit it, take its machine away half way, see it resume, and check what came out.

Everything goes through the command line, as a person would do it. Exit code 0: trained, interrupted, resumed, ≥ 97 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

JOB = Path(__file__).with_name("job.yaml")
CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
EPOCHS, STEPS_PER_EPOCH = 30, 45
LEAST_ACCURACY = 0.97


def cloudgpu(*words: str) -> str:
    """Run a command, shown as it would be typed; returns what it printed. Ends the demo if it fails."""
    print(f"\n$ cloudgpu {' '.join(words)}", flush=True)
    return _run(*words)


def _run(*words: str) -> str:
    done = subprocess.run([CLOUDGPU, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"cloudgpu {words[0]} ended with exit code {done.returncode}")
    return done.stdout


def wait_for_step(job: str, step: int) -> None:
    """Wait until the program has done this number of steps, as its machine reports them."""
    while True:
        status = json.loads(_run("status", job, "--json"))
        done = status["step"] or 0
        print(f"\r  step {done} of {EPOCHS * STEPS_PER_EPOCH}", end="", flush=True)
        if done >= step:
            print()
            return
        if status["ended"]:
            sys.exit(f"\nthe job ended too soon: {status['state']}: {status['reason']}")
        time.sleep(0.3)


def main() -> int:
    job = json.loads(cloudgpu("submit", str(JOB), "--detach", "--json"))["id"]
    wait_for_step(job, EPOCHS * STEPS_PER_EPOCH // 2)
    print(cloudgpu("preempt", job, "--after", "10s"), end="")
    print(cloudgpu("logs", job, "--follow"), end="")
    print(cloudgpu("wait", job), end="")
    print(cloudgpu("status", job), end="")

    status = json.loads(_run("status", job, "--json"))
    report = status["report"]
    outputs = Path(status["job_dir"].removeprefix("file://")) / "outputs"
    metrics = json.loads((outputs / "metrics.json").read_text())
    attempts, accuracy = len(report["attempts"]), metrics["accuracy"]
    print(
        f"\nattempts {attempts}, steps redone {report['redone']} of {report['steps']}, "
        f"goodput {report['goodput']:.0%}, test accuracy {accuracy:.2%}"
    )
    if attempts < 2 or accuracy < LEAST_ACCURACY:
        print(f"expected an interruption and an accuracy of at least {LEAST_ACCURACY:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
