"""Writes with pathlib: a log that is appended to, a file per epoch, a summary."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OUT = Path("out")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    log = OUT / "train.log"
    log.write_text("epoch,loss\n")
    x = torch.randn(120, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).tanh()), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best = float("inf")
    for epoch in range(8):
        losses = []
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        with log.open("a") as f:
            f.write(f"{epoch},{mean:.8f}\n")
        (OUT / f"losses-{epoch}.txt").write_text("\n".join(f"{v:.8f}" for v in losses))
        if mean < best:
            best = mean
            (OUT / "best.txt").write_text(f"{epoch} {best:.8f}\n")
        print(f"epoch {epoch} {mean:.8f}")
    torch.save(model.state_dict(), OUT / "model.pt")


if __name__ == "__main__":
    main()
