"""Lightning's fit(), killed and stopped at random batches, ends in the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import check, needs, results, said
from cloudgpu.tests.standins.interrupted import Run
from cloudgpu.tests.standins.long_mode import LONG, in_long_mode

needs("lightning")

PROGRAM = """\
import logging, os, random, warnings
import numpy as np
import torch
from torch import nn
import lightning.pytorch as pl
from cloudgpu.runtime.integrations.lightning import CheckpointCallback

KIND = {kind!r}
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Noisy(torch.utils.data.Dataset):
    def __init__(self, size=52):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        return torch.full((8,), i / 53) + torch.randn(8) * 0.1 + random.random() + float(np.random.rand()), i % 4

class Module(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters(dict(anything=print))
        self.net = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 4))
        self.net[0].weight.data = self.net[0].weight.data.T.contiguous().T  # not row-major, as channels_last is not
    def training_step(self, batch, i):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, i):
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2, fused=True)
        if "plateau" not in KIND:
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
            return [optimizer], [dict(scheduler=schedule, interval="step")]
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return dict(optimizer=optimizer, lr_scheduler=dict(scheduler=schedule, monitor="loss"))

class Watch(pl.Callback):
    def on_train_batch_end(self, *_):
        self.batch_done()

def train(folder, every, batch_done, changed):
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    pl.seed_everything(4, verbose=False)
    watch = Watch()
    watch.batch_done = batch_done
    epochs = 6 if changed == "longer" else 4
    averaging = []
    if "swa" in KIND:
        averaging = [pl.callbacks.StochasticWeightAveraging(0.02, swa_epoch_start=2, annealing_epochs=3)]
    if "ema" in KIND:
        averaging = [pl.callbacks.EMAWeightAveraging(decay=0.9)]
    trainer = pl.Trainer(
        accelerator="cpu", devices=processes, max_epochs=epochs, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
        accumulate_grad_batches=3 if "accumulated" in KIND else 1, val_check_interval=3 if "often" in KIND else 1.0,
        callbacks=[watch, CheckpointCallback(folder, every=every), *averaging][:: 1 if "last" in KIND else -1],
    )
    module = Module(33 if changed == "model" else 32)
    data = Noisy(68 if changed == "data" else 52)
    loader = torch.utils.data.DataLoader(data, batch_size=8 // processes, shuffle=True)
    trainer.fit(module, loader, torch.utils.data.DataLoader(Noisy(), batch_size=26))
    counted = trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped
    print("counted", counted, trainer.fit_loop.epoch_loop.total_batch_idx)
    moments = [value for state in trainer.optimizers[0].state_dict()["state"].values() for value in state.values()]
    tensors = [*module.state_dict().values(), *moments]
    schedule = trainer.lr_scheduler_configs[0].scheduler.state_dict()
    return b"".join(tensor.numpy().tobytes() for tensor in tensors) + repr(schedule).encode()
"""

CASES = ["accumulated often"] if not LONG else ["", "accumulated", "often", "accumulated often", "plateau often"]


@pytest.mark.parametrize("kind", CASES)
def test_interrupted(kind: str, tmp_path: Path) -> None:
    runs = results(PROGRAM.format(kind=kind), tmp_path)
    check(runs, misfit="the checkpoint does not fit the module")
    assert said(runs, "resumed", "counted") == said(runs, "undisturbed", "counted")


@pytest.mark.parametrize("kind", ["swa last", *(["swa", "swa plateau", "ema", "ema last"] if LONG else [])])
def test_averaged_weights(kind: str, tmp_path: Path) -> None:
    """The training is stopped in the epochs of averaging, and in the one that recomputes batch normalisation
    statistics."""
    stops = (9, 11, 11 if "swa" in kind else 5)
    plan = [
        Run("undisturbed", folder="undisturbed"),
        *(Run(f"stopped {number}", how="term", after=after) for number, after in enumerate(stops)),
        Run("resumed"),
    ]
    runs = results(PROGRAM.format(kind=kind), tmp_path, plan=plan)
    assert 0 < runs["resumed"]["ranks"][0]["batches"] < 8, runs["resumed"]["output"]
    assert runs["resumed"]["ranks"][0]["digest"] == runs["undisturbed"]["ranks"][0]["digest"]


@in_long_mode
@pytest.mark.parametrize("kind", ["", "accumulated often"])
def test_two_processes(kind: str, tmp_path: Path) -> None:
    runs = results(PROGRAM.format(kind=kind), tmp_path, world=2)
    check(runs, misfit="the checkpoint does not fit the module")
    assert said(runs, "resumed", "counted") == said(runs, "undisturbed", "counted")
