"""Keras' fit, killed and told to stop at random batches: ends in the same bits, on each of its backends.

CLOUDGPU_LONG=1 tries all backends, kinds of data and more kills; otherwise one kind for each of two backends.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import LONG, check, results

pytest.importorskip("keras")

PROGRAM = """\
import os, random
os.environ.update(KERAS_BACKEND={backend!r}, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
import numpy as np
import keras
import tensorflow  # fit() looks at it whatever the backend is; once, here, instead of in every run
from cloudgpu.runtime.integrations.keras import CheckpointCallback

KIND = {kind!r}
x = np.linspace(0, 1, 52 * 6, dtype="float32").reshape(52, 6)
y = np.arange(52) % 3

class Augmented(keras.utils.PyDataset):
    def __len__(self):
        return 7
    def __getitem__(self, i):
        return x[8 * i : 8 * i + 8] + np.random.rand(), y[8 * i : 8 * i + 8]

def train(folder, every, batch_done, changed):
    keras.utils.set_random_seed(5)
    first = [] if KIND == "unbuilt" else [keras.Input((6,))]
    model = keras.Sequential([
        *first, keras.layers.Dense(17 if changed else 16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3),
        keras.layers.Dense(3),
    ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    checkpoints = CheckpointCallback(folder, every=every)
    logs = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if checkpoints._skipping is None or not checkpoints._skipping.left:
                batch_done()
        def on_epoch_end(self, epoch, logs_of_epoch=None):
            logs[:] = [epoch, sorted(logs_of_epoch.items())]

    data = dict(x=Augmented(), shuffle=True) if KIND == "augmented" else dict(x=x, y=y, batch_size=8)
    model.fit(**data, epochs=4, verbose=0, validation_data=(x, y), callbacks=[Watch(), checkpoints])
    print("last epoch", *logs)
    variables = [*model.variables, *model.optimizer.variables]
    return b"".join(keras.ops.convert_to_numpy(variable.value).tobytes() for variable in variables)
"""

BATCHES = 28
CASES = [("torch", "augmented"), ("jax", "arrays")]
if LONG:
    CASES = [(b, k) for b in ("torch", "jax", "tensorflow") for k in ("arrays", "augmented")] + [
        ("tensorflow", "unbuilt")
    ]


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_interrupted(backend: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    chance = random.Random(os.environ.get("CLOUDGPU_SEED", backend + kind))
    kills = [chance.randrange(2, 8) for _ in range(3 if LONG else 2)]
    runs = results(PROGRAM.format(backend=backend, kind=kind), tmp_path, kills)
    check(runs, BATCHES, "the checkpoint does not fit the model: variable 0 was")
    # The metrics of the epoch that was interrupted count its batches from before, too.
    told = {run["run"]: [line for line in run["output"].splitlines() if "last epoch" in line] for run in runs}
    assert told["resumed"] == told["undisturbed"]


def test_missing_framework_is_told(tmp_path: Path) -> None:
    check_missing("keras", "keras>=3.8", tmp_path)
    check_missing("lightning", "lightning>=2.5", tmp_path)
    check_missing("transformers", "transformers[torch]>=5", tmp_path)
    check_missing("accelerate", "accelerate>=1.2", tmp_path)


def check_missing(framework: str, requirement: str, folder: Path) -> None:
    program = f"import sys; sys.modules[{framework!r}] = None\nimport cloudgpu.runtime.integrations.{framework}\n"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last == f"ImportError: this needs {framework}: pip install '{requirement}'", result.stderr
