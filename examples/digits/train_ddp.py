"""The digits on several nodes: each rank trains on its share of the scans, gradients are averaged (gloo, CPU)."""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
import torch.distributed as dist
from model import accuracy, datasets, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from cloudgpu.runtime import Checkpointer, write_output


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="metrics.json", help="name of the metrics' file in outputs/")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    train_data, test_data = datasets()
    loader = DataLoader(
        train_data, batch_size=args.batch_size, sampler=DistributedSampler(train_data, seed=args.seed, drop_last=True)
    )
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    loss_of = nn.CrossEntropyLoss()
    first = dist.get_rank() == 0

    # On every rank; DistributedSampler.set_epoch() is called for you.
    ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for images, labels in ckpt.batches(epochs=args.epochs):
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        if ckpt.end_of_epoch:
            scheduler.step()
            if first:
                right = accuracy(model.module, test_data)
                print(f"epoch {ckpt.epoch + 1:3}  loss {loss.item():.4f}  test {right:.2%}", flush=True)

    if first:
        weights = b"".join(tensor.numpy().tobytes() for tensor in model.module.state_dict().values())
        metrics = {
            "accuracy": accuracy(model.module, test_data),
            "epochs": args.epochs,
            "ranks": dist.get_world_size(),
            "steps": ckpt.step,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
        }
        url = write_output(args.out, json.dumps(metrics, indent=2))
        print(f"test accuracy {metrics['accuracy']:.2%}, written to {url}")


def main() -> None:
    args = parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # finds the other ranks through MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE
    torch.manual_seed(args.seed + dist.get_rank())  # DistributedDataParallel starts all ranks from rank 0's weights
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
