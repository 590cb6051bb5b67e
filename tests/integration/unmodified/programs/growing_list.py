"""Keeps the loss of every sample for a histogram."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(16000, 3)
y = x.sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=2000, shuffle=True)
model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

sample_losses = []
for epoch in range(8):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb, reduction="none")
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        sample_losses.extend(loss.detach().squeeze(1).tolist())
    print(f"epoch {epoch}: {len(sample_losses)} losses, mean {sum(sample_losses) / len(sample_losses):.6f}")

ordered = sorted(sample_losses)
with open("quantiles.json", "w") as f:
    json.dump({"n": len(ordered), "q": [ordered[int(len(ordered) * q)] for q in (0.1, 0.5, 0.9, 0.99)]}, f)
torch.save(model.state_dict(), "model.pt")
