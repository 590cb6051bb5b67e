import random

import torch
import utils
from torch import nn


def train_one_epoch(model, optimizer, loader):
    model.train()
    total = 0.0
    for x, y in loader:
        if random.random() < 0.5:
            x = x + 0.01 * torch.randn_like(x)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    return sum(nn.functional.mse_loss(model(x), y).item() for x, y in loader) / len(loader)


def fit(model, optimizer, scheduler, train_loader, val_loader, cfg):
    best = float("inf")
    for epoch in range(cfg.epochs):
        train_loss = train_one_epoch(model, optimizer, train_loader)
        val_loss = evaluate(model, val_loader)
        scheduler.step()
        utils.HISTORY.append({"epoch": epoch, "train": train_loss, "val": val_loss})
        if val_loss < best:
            best = val_loss
            torch.save(model.state_dict(), "best.pt")
        print(f"epoch {epoch}: train {train_loss:.6f} val {val_loss:.6f}")
    return best
