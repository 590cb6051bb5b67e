"""argparse, logging to a file, validation, JSON history: a plain script."""

import argparse
import json
import logging
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger("train")


def parse_args(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--out", default="history.json")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.addHandler(logging.FileHandler("train.log"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(140, 6)
    y = x.exp().sum(1, keepdim=True).log()
    train = DataLoader(TensorDataset(x[:100], y[:100]), batch_size=10, shuffle=True)
    val = DataLoader(TensorDataset(x[100:], y[100:]), batch_size=40)
    model = nn.Sequential(nn.Linear(6, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    history = []
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for xb, yb in train:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            error = sum(nn.functional.mse_loss(model(a), b).item() for a, b in val)
        history.append({"epoch": epoch, "train": total / len(train), "val": error})
        logger.info("epoch %d train %.6f val %.6f", epoch, total / len(train), error)
    torch.save(model.state_dict(), "model.pt")
    with open(args.out, "w") as f:
        json.dump({"args": vars(args), "history": history}, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
