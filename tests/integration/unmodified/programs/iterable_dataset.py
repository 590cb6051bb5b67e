"""A stream: IterableDataset with a shuffle buffer."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, n, buffer=24):
        self.n, self.buffer = n, buffer
        self.epoch = 0

    def records(self):
        g = torch.Generator().manual_seed(self.epoch)
        for _ in range(self.n):
            x = torch.randn(6, generator=g)
            yield x, x.sum().unsqueeze(0)

    def __iter__(self):
        pool = []
        for record in self.records():
            pool.append(record)
            if len(pool) >= self.buffer:
                yield pool.pop(random.randrange(len(pool)))
        random.shuffle(pool)
        yield from pool


random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
dataset = Stream(100)
loader = DataLoader(dataset, batch_size=10)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    dataset.epoch = epoch
    total = 0.0
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total:.6f}")
torch.save(model.state_dict(), "model.pt")
