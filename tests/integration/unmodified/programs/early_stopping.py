"""Stops when the validation loss has not become better for three epochs."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience=3, path="best.pt"):
        self.patience = patience
        self.path = path
        self.counter = 0
        self.best_score = None
        self.early_stop = False

    def __call__(self, val_loss, model):
        if self.best_score is None or val_loss < self.best_score:
            self.best_score = val_loss
            torch.save(model.state_dict(), self.path)
            self.counter = 0
        else:
            self.counter += 1
            print(f"EarlyStopping counter: {self.counter} out of {self.patience}")
            self.early_stop = self.counter >= self.patience


def run():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    x = torch.randn(130, 20)
    y = x[:, :1] + torch.randn(130, 1)
    train_loader = DataLoader(TensorDataset(x[:80], y[:80]), batch_size=10, shuffle=True)
    valid_loader = DataLoader(TensorDataset(x[80:], y[80:]), batch_size=25)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    stopping = EarlyStopping()
    avg_valid = []
    for epoch in range(1, 40):
        model.train()
        for a, b in train_loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            valid = sum(nn.functional.mse_loss(model(a), b).item() for a, b in valid_loader) / len(valid_loader)
        avg_valid.append(valid)
        print(f"[{epoch:>2}] valid_loss: {valid:.5f}")
        stopping(valid, model)
        if stopping.early_stop:
            print("Early stopping")
            break
    model.load_state_dict(torch.load("best.pt"))
    torch.save(model.state_dict(), "final.pt")
    json.dump(avg_valid, open("valid.json", "w"))


run()
