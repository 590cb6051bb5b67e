"""OneCycleLR per batch; learning rates into a CSV at the end."""

import csv

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8


def fit(model, train_dl, max_lr, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=max_lr / 10)
    sched = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, epochs=epochs, steps_per_epoch=len(train_dl))
    rows = []
    for epoch in range(epochs):
        model.train()
        lrs, losses = [], []
        for xb, yb in train_dl:
            loss = nn.functional.cross_entropy(model(xb), yb)
            losses.append(loss.detach())
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            lrs.append(sched.get_last_lr()[0])
            sched.step()
        rows.append([epoch, lrs[-1], torch.stack(losses).mean().item()])
        print("Epoch [{}], last_lr: {:.6f}, train_loss: {:.6f}".format(*rows[-1]))
    return rows


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(128, 10)
train_dl = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
rows = fit(model, train_dl, 1e-2, EPOCHS)
torch.save(model.state_dict(), "model.pth")
with open("history.csv", "w", newline="") as f:
    csv.writer(f).writerows([["epoch", "lr", "loss"], *rows])
