"""Mixup whose coefficients come from a random.Random of its own."""

import json
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
rng = random.Random(42)


def mixup(x, y, alpha=0.4):
    lam = rng.betavariate(alpha, alpha)
    order = list(range(len(x)))
    rng.shuffle(order)
    return lam * x + (1 - lam) * x[order], y, y[order], lam


x = torch.randn(120, 8)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
lams = []
for epoch in range(8):
    for xb, yb in loader:
        mixed, ya, yb, lam = mixup(xb, yb)
        out = model(mixed)
        loss = lam * nn.functional.cross_entropy(out, ya) + (1 - lam) * nn.functional.cross_entropy(out, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lams.append(lam)
    print(f"epoch {epoch}: loss {loss.item():.6f}")
torch.save(model.state_dict(), "mixup.pt")
with open("lams.json", "w") as f:
    json.dump(lams, f)
