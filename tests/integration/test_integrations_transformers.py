"""Transformers' Trainer, killed and stopped at random batches, ends in the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import check, needs, results, said
from cloudgpu.tests.standins.long_mode import LONG, in_long_mode

needs("transformers")

PROGRAM = """\
import os, random
import numpy as np
import torch
import transformers
from cloudgpu.runtime.integrations.transformers import Trainer

KIND = {kind!r}

class Masked(torch.utils.data.Dataset):
    # Random as a collator for masked language models: drawn from the global generators, one batch ahead of training
    def __init__(self, size=53):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        ids = torch.arange(8) * 7 + i + torch.randint(0, 50, (8,)) + random.randrange(50) + np.random.randint(50)
        return dict(input_ids=ids % 50, labels=torch.tensor(i % 3))

class Watch(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        self.batch_done()

class Counting(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
    # What it counts is to be restored, its argument is the program's
    def __init__(self, limit):
        self.limit, self.steps = limit, 0
    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1
    def state(self):
        return dict(args=dict(limit=self.limit), attributes=dict(steps=self.steps))

def train(folder, every, batch_done, changed):
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    transformers.set_seed(3)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=51 if changed == "model" else 50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, num_labels=3,
    ))
    dense = model.bert.pooler.dense.weight
    dense.data = dense.data.T.contiguous().T  # not row-major, as channels_last is not
    accumulated = 2 if "accumulated" in KIND else 1
    epochs = 6 if changed == "longer" else 4
    args = transformers.TrainingArguments(
        output_dir=folder + ".own", num_train_epochs=epochs, max_steps=4 * epochs if "steps" in KIND else -1,
        per_device_train_batch_size=8 // accumulated // processes, gradient_accumulation_steps=accumulated,
        # It would evaluate, and draw at random for it, after the last of max_steps, too.
        logging_steps=5, eval_strategy="no" if "steps" in KIND else "steps", eval_steps=7, save_strategy="no",
        report_to=[], disable_tqdm=True, optim="adamw_torch_fused",
        use_cpu=True, seed=3, learning_rate=1e-2, lr_scheduler_type="constant" if "steps" in KIND else "linear",
        accelerator_config=dict(use_seedable_sampler="global" not in KIND), metric_for_best_model="loss",
    )
    counting = Counting(limit=os.getpid())
    stopping = [] if "steps" in KIND else [transformers.EarlyStoppingCallback(early_stopping_patience=100)]
    watch = Watch()
    watch.batch_done = batch_done
    data = Masked(69 if changed == "data" else 53)
    trainer = Trainer(
        model=model, args=args, train_dataset=data, eval_dataset=Masked(), callbacks=[watch, counting, *stopping],
        checkpoints=dict(folder=folder, every=every),
    )
    loss = trainer.train().training_loss
    rows = [row for row in trainer.state.log_history if "train_runtime" not in row]
    counts = counting.steps, counting.limit == os.getpid(), [one.early_stopping_patience_counter for one in stopping]
    print("logged", loss, counts, [(row["step"], row.get("loss"), row.get("eval_loss")) for row in rows])
    moments = [value for state in trainer.optimizer.state_dict()["state"].values() for value in state.values()]
    tensors = [*model.state_dict().values(), *moments]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors) + repr(trainer.lr_scheduler.state_dict()).encode()
"""

CASES = ["accumulated global"] if not LONG else ["", "accumulated", "accumulated global", "steps", "steps global"]


@pytest.mark.parametrize("kind", CASES)
def test_interrupted(kind: str, tmp_path: Path) -> None:
    check_runs(kind, 1, tmp_path)


@in_long_mode
@pytest.mark.parametrize("kind", ["accumulated", "global"])
def test_two_processes(kind: str, tmp_path: Path) -> None:
    check_runs(kind, 2, tmp_path)


def check_runs(kind: str, processes: int, folder: Path) -> None:
    steps = 16 if "steps" in kind else 28
    runs = results(PROGRAM.format(kind=kind), folder, batches=steps, world=processes)
    # With more epochs, the learning rate schedule differs from the start.
    check(runs, batches=steps, misfit="the checkpoint does not fit the model", longer_is_exact="steps" in kind)
    # The Trainer's logs and averages also cover the steps before an interruption.
    for name in ("resumed", "finished"):
        assert said(runs, name, "logged") == said(runs, "undisturbed", "logged")
