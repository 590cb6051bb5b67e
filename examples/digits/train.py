"""Learn to read handwritten digits. Interrupt it whenever you like: started again, it goes on where it was."""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
from model import accuracy, datasets, network
from torch import nn
from torch.utils.data import DataLoader

from cloudgpu.runtime import Checkpointer, write_output


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="metrics.json", help="name of the metrics' file in outputs/")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # The same seed gives the same weights, bit for bit, interrupted or not.
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    train, test = datasets()
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    loss_of = nn.CrossEntropyLoss()

    ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for images, labels in ckpt.batches(epochs=args.epochs):
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        if ckpt.end_of_epoch:
            scheduler.step()
            print(f"epoch {ckpt.epoch + 1:3}  loss {loss.item():.4f}  test {accuracy(model, test):.2%}", flush=True)

    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    metrics = {
        "accuracy": accuracy(model, test),
        "epochs": args.epochs,
        "steps": ckpt.step,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    print(
        f"test accuracy {metrics['accuracy']:.2%}, written to {write_output(args.out, json.dumps(metrics, indent=2))}"
    )


if __name__ == "__main__":
    main()
