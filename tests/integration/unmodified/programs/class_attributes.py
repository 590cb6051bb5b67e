"""Keeps its counters and its learning rate on classes."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Config:
    lr = 1e-2
    warmup = 20
    epochs = 8


class Stats:
    step = 0
    best_loss = 1e9
    losses: list = []


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(120, 4)
loader = DataLoader(TensorDataset(x, x @ torch.randn(4, 1)), batch_size=12, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=Config.lr)
for epoch in range(Config.epochs):
    for xb, yb in loader:
        Stats.step += 1
        if Stats.step > Config.warmup:
            Config.lr *= 0.98
        for group in optimizer.param_groups:
            group["lr"] = Config.lr * min(1.0, Stats.step / Config.warmup)
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        Stats.losses.append(loss.item())
        Stats.best_loss = min(Stats.best_loss, loss.item())
    print(f"epoch {epoch}: lr {Config.lr:.6f} best {Stats.best_loss:.6f}")
torch.save(model.state_dict(), "model.pt")
json.dump({"steps": Stats.step, "best": Stats.best_loss, "losses": Stats.losses}, open("stats.json", "w"))
