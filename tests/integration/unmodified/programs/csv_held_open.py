"""A csv writer that is held open while it trains."""

import csv

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(120, 6)
    loader = DataLoader(TensorDataset(x, x.min(1, keepdim=True).values), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with open("log.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["epoch", "step", "loss"])
        step = 0
        for epoch in range(8):
            for xb, yb in loader:
                loss = nn.functional.mse_loss(model(xb), yb)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                writer.writerow([epoch, step, f"{loss.item():.8f}"])
            f.flush()
            print(f"epoch {epoch} {loss.item():.8f}")
    torch.save(model.state_dict(), "model.pt")


main()
