"""Saves the best weights as safetensors."""

import json

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

x, w = torch.randn(150, 10), torch.randn(10, 1)
y = x @ w + 0.5 * torch.randn(150, 1)
train = DataLoader(TensorDataset(x[:110], y[:110]), batch_size=11, shuffle=True)
valid = DataLoader(TensorDataset(x[110:], y[110:]), batch_size=40)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)

best = {"loss": float("inf"), "epoch": -1}
for epoch in range(9):
    model.train()
    for xb, yb in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(xb), yb).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.mse_loss(model(a), b).item() for a, b in valid)
    if loss < best["loss"]:
        best = {"loss": loss, "epoch": epoch}
        save_file(model.state_dict(), "best.safetensors")
    print(f"epoch {epoch}: val {loss:.6f} best {best['loss']:.6f} (epoch {best['epoch']})")
save_file(model.state_dict(), "last.safetensors")
with open("best.json", "w") as f:
    json.dump(best, f)
