"""`zip(range(n), loader)` to cap an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_epoch(model, loader, optimizer, steps_per_epoch):
    losses = []
    for i, (x, y) in zip(range(steps_per_epoch), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return i + 1, sum(losses) / len(losses)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(200, 5)
    loader = DataLoader(TensorDataset(x, x.pow(3).sum(1, keepdim=True)), batch_size=10, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    log = []
    for epoch in range(8):
        n, loss = train_epoch(model, loader, optimizer, 12)
        log.append(f"{epoch} {n} {loss:.8f}")
        print(log[-1])
    torch.save(model.state_dict(), "model.pt")
    with open("log.txt", "w") as f:
        f.write("\n".join(log))


if __name__ == "__main__":
    main()
