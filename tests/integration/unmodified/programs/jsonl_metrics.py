"""One line of JSON per step, appended to metrics.jsonl."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class JsonLogger:
    def __init__(self, path):
        self.path = Path(path)

    def log(self, **row):
        with self.path.open("a") as f:
            f.write(json.dumps(row) + "\n")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    logger = JsonLogger("metrics.jsonl")
    x = torch.randn(100, 5)
    loader = DataLoader(TensorDataset(x, x.std(1, keepdim=True)), batch_size=10, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, nesterov=True, momentum=0.9)
    step = 0
    for epoch in range(9):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            logger.log(step=step, epoch=epoch, loss=loss.item())
        print(f"epoch {epoch} loss {loss.item():.6f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
