"""Evaluates every 15 steps and goes on training with the model in eval mode (a mistake that many make)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(150, 12)
y = x.abs().sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:120], y[:120]), batch_size=12, shuffle=True)
val_loader = DataLoader(TensorDataset(x[120:], y[120:]), batch_size=30)
model = nn.Sequential(nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.3), nn.Linear(40, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)


def evaluate():
    model.eval()
    with torch.no_grad():
        return sum(nn.functional.mse_loss(model(a), b).item() for a, b in val_loader) / len(val_loader)


model.train()
step = 0
for epoch in range(8):
    for xb, yb in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(xb), yb).backward()
        optimizer.step()
        step += 1
        if step % 15 == 0:
            print(f"step {step}: val {evaluate():.6f} (training={model.training})")
torch.save(model.state_dict(), "model.pt")
print(f"final {evaluate():.6f}")
