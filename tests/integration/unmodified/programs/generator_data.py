"""A generator function makes the batches; no DataLoader."""

import numpy as np
import torch
from torch import nn


def batches(x, y, size, rng):
    order = rng.permutation(len(x))
    for start in range(0, len(x), size):
        ids = order[start : start + size]
        yield torch.from_numpy(x[ids]), torch.from_numpy(y[ids])


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(8):
        for xb, yb in batches(x, y, 12, rng):
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} {loss.item():.8f}")
    torch.save(model.state_dict(), "model.pt")


main()
