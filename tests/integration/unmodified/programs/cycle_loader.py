"""Counts steps, not epochs: enumerate over an endless loader (lucidrains style)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def cycle(dl):
    while True:
        for data in dl:
            yield data


torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 90

x = torch.randn(100, 6)
loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step, (xb, yb) in enumerate(cycle(loader)):
    if step >= STEPS:
        break
    loss = nn.functional.mse_loss(model(xb), yb)
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step % 10 == 0:
        print(f"{step}: {loss.item():.6f}")
    if step != 0 and step % 30 == 0:
        torch.save(model.state_dict(), f"model-{step // 30}.pt")
torch.save({"model": model.state_dict(), "step": step}, "model-final.pt")
print("training complete")
