"""A training step as a closure with nonlocal counters."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_train_step(model, optimizer, loss_fn, smoothing=0.9):
    average, steps = None, 0
    recent = []

    def train_step(x, y):
        nonlocal average, steps
        model.train()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        average = loss.item() if average is None else smoothing * average + (1 - smoothing) * loss.item()
        recent.append(average)
        return average, steps

    def summary():
        return {"average": average, "steps": steps, "recent": recent[-20:]}

    return train_step, summary


torch.manual_seed(13)
torch.set_num_threads(1)
x = torch.rand(100, 1)
y = 1 + 2 * x + 0.1 * torch.randn(100, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_step, summary = make_train_step(model, optimizer, nn.MSELoss())
for epoch in range(9):
    for xb, yb in loader:
        average, steps = train_step(xb, yb)
    print(f"epoch {epoch}: {steps} steps, {average:.8f}")
torch.save(model.state_dict(), "model.pt")
with open("summary.json", "w") as f:
    json.dump(summary(), f)
