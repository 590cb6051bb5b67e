"""Transformers' Trainer, killed and told to stop at random batches: ends in the same bits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cloudgpu.tests.standins.integrations import LONG, check, results

pytest.importorskip("transformers")

PROGRAM = """\
import random
import numpy as np
import torch
import transformers
from cloudgpu.runtime.integrations.transformers import Trainer

KIND = {kind!r}

class Masked(torch.utils.data.Dataset):
    # Random as a collator for masked language models: drawn from the global generators, one batch ahead of training
    def __len__(self):
        return 53
    def __getitem__(self, i):
        ids = torch.arange(8) * 7 + i + torch.randint(0, 50, (8,)) + random.randrange(50) + np.random.randint(50)
        return dict(input_ids=ids % 50, labels=torch.tensor(i % 3))

class Watch(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        self.batch_done()

def train(folder, every, batch_done, changed):
    transformers.set_seed(3)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=51 if changed else 50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, num_labels=3,
    ))
    accumulated = 2 if "accumulated" in KIND else 1
    args = transformers.TrainingArguments(
        output_dir=folder + ".own", num_train_epochs=4, max_steps=17 if "steps" in KIND else -1,
        per_device_train_batch_size=8 // accumulated, gradient_accumulation_steps=accumulated, logging_steps=5,
        eval_strategy="steps", eval_steps=7, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=3,
        learning_rate=1e-2, accelerator_config=dict(use_seedable_sampler="global" not in KIND),
    )
    watch = Watch()
    watch.batch_done = batch_done
    trainer = Trainer(
        model=model, args=args, train_dataset=Masked(), eval_dataset=Masked(), callbacks=[watch],
        checkpoints=dict(folder=folder, every=every),
    )
    loss = trainer.train().training_loss
    rows = [row for row in trainer.state.log_history if "train_runtime" not in row]
    print("logged", loss, [(row["step"], row.get("loss"), row.get("eval_loss")) for row in rows])
    moments = [value for state in trainer.optimizer.state_dict()["state"].values() for value in state.values()]
    tensors = [*model.state_dict().values(), *moments]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors) + repr(trainer.lr_scheduler.state_dict()).encode()
"""

CASES = ["accumulated global"] if not LONG else ["", "accumulated", "accumulated global", "steps", "steps global"]


@pytest.mark.parametrize("kind", CASES)
def test_interrupted(kind: str, tmp_path: Path) -> None:
    chance = random.Random(kind)
    steps = 17 if "steps" in kind else 28
    kills = [chance.randrange(2, 4 if "steps" in kind else 8) for _ in range(2)]
    runs = results(PROGRAM.format(kind=kind), tmp_path, kills)
    check(runs, steps, "the checkpoint does not fit the model")
    # What the Trainer logs and averages over steps before and after an interruption is the same as well.
    told = {run["run"]: [line for line in run["output"].splitlines() if line.startswith("logged")] for run in runs}
    assert told["resumed"] == told["finished"] == told["undisturbed"]
