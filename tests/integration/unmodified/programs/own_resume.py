"""Saves last.pt every epoch and goes on from it when it is there."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--resume", default="last.pt")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    start_epoch, trained = 0, []
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
        trained = checkpoint["trained"]
        torch.set_rng_state(checkpoint["rng"])
        print(f"=> resumed from epoch {start_epoch}")
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x.norm(dim=1, keepdim=True)), batch_size=12, shuffle=True)
    for epoch in range(start_epoch, args.epochs):
        for a, b in loader:
            loss = nn.functional.l1_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained.append(epoch)
        print(f"epoch {epoch} loss {loss.item():.6f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save({**state, "trained": trained, "rng": torch.get_rng_state()}, "last.pt")
    torch.save(model.state_dict(), "final.pt")
    print("trained epochs", trained)


if __name__ == "__main__":
    main()
