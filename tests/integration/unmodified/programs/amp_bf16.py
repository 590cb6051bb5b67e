"""Autocast to bfloat16 on the CPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_one_epoch(model, loader, optimizer, scheduler):
    model.train()
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    return running / len(loader)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(128, 16)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9 * len(loader))
    for epoch in range(9):
        print(f"epoch {epoch}: {train_one_epoch(model, loader, optimizer, scheduler):.6f}")
    torch.save(model.state_dict(), "model.pt")
