"""Keras' fit() on each of its backends, killed and stopped at random batches, ends in the same bits.

CLOUDGPU_LONG=1 tests all backends and kinds of data; otherwise arrays under JAX, whose state is the hardest to access.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.runtime.launchers import free_port
from cloudgpu.tests.standins.integrations import check, needs, results, said
from cloudgpu.tests.standins.long_mode import LONG

needs("keras")

PROGRAM = """\
import os, random
os.environ.update(
    KERAS_BACKEND={backend!r}, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="",
    # What JAX has compiled in one run need not be compiled in the next.
    JAX_COMPILATION_CACHE_DIR={cache!r}, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
)
import numpy as np
import keras
import tensorflow  # fit() looks at it whatever the backend is; once, here, instead of in every run
from cloudgpu.runtime.integrations.keras import CheckpointCallback

KIND = {kind!r}
x = np.linspace(0, 1, 52 * 6, dtype="float32").reshape(52, 6)
y = np.arange(52) % 3

class Augmented(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches
    def __len__(self):
        return self.batches
    def __getitem__(self, i):
        return x[8 * i : 8 * i + 8] + np.random.rand(), y[8 * i : 8 * i + 8]

def train(folder, every, batch_done, changed):
    keras.utils.set_random_seed(5)
    first = [] if KIND == "unbuilt" else [keras.Input((6,))]
    model = keras.Sequential([
        *first, keras.layers.Dense(17 if changed == "model" else 16), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3), keras.layers.Dense(3),
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

    batches = 6 if changed == "data" else 7
    data = dict(x=x[: 8 * batches], y=y[: 8 * batches], batch_size=8)
    if KIND == "augmented":
        data = dict(x=Augmented(batches), shuffle=True)
    epochs = 6 if changed == "longer" else 4
    model.fit(**data, epochs=epochs, verbose=0, validation_data=(x, y), callbacks=[Watch(), checkpoints])
    assert not model._initial_epoch, "the next fit() would begin there"
    print("last epoch", *logs)
    variables = [*model.variables, *model.optimizer.variables]
    return b"".join(keras.ops.convert_to_numpy(variable.value).tobytes() for variable in variables)
"""

CASES = [("jax", "arrays")]
if LONG:
    # TensorFlow prefetches in a thread, so random draws differ between runs even without an interruption.
    CASES = [(b, k) for b in ("torch", "jax") for k in ("arrays", "augmented")] + [("tensorflow", "arrays")]


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_interrupted(backend: str, kind: str, tmp_path: Path) -> None:
    needs(backend)
    runs = results(PROGRAM.format(backend=backend, kind=kind, cache=str(tmp_path / "jax")), tmp_path)
    check(runs, misfit="the checkpoint does not fit the model: variable 0 was")
    # The metrics of the interrupted epoch include its batches before the interruption.
    assert said(runs, "resumed", "last epoch") == said(runs, "undisturbed", "last epoch")


TOGETHER = """\
import json, os, sys
rank, port, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
where = f"127.0.0.1:{port}"
if backend == "torch":
    import torch
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{where}", rank=rank, world_size=2)
elif backend == "jax":
    import jax
    jax.distributed.initialize(where, num_processes=2, process_id=rank)
else:
    cluster = {"worker": [where, f"127.0.0.1:{sys.argv[4]}"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
import contextlib
import numpy as np
scope = contextlib.nullcontext()
if backend == "tensorflow":
    import tensorflow as tf
    scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
import keras
from cloudgpu.runtime.checkpoint.errors import CheckpointError
from cloudgpu.runtime.integrations.keras import CheckpointCallback
with scope:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
checkpoints = CheckpointCallback("there")
try:
    if backend == "tensorflow":  # as fit() does; Keras 3.15's own fails under this strategy before it comes to that
        checkpoints.set_model(model)
        checkpoints.on_train_begin()
    model.fit(np.ones((8, 2)), np.ones(8), verbose=0, callbacks=[checkpoints])
except CheckpointError as error:
    print(error, os.path.exists("there"), flush=True)
    os._exit(3)  # nobody waits for the other's goodbye
"""


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"] if LONG else ["torch"])
def test_several_processes_are_refused(backend: str, tmp_path: Path) -> None:
    needs(backend)
    ports = [str(free_port(number, 2)) for number in range(2)]
    command = [sys.executable, "-c", TOGETHER]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), ports[0], backend, ports[1]], stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for rank in range(2)
    ]
    for rank in ranks:
        output, _ = rank.communicate(timeout=200)
        assert (rank.returncode, "2 train this model together" in output, "False" in output) == (3, True, True), output


def test_a_missing_framework_is_named(tmp_path: Path) -> None:
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
