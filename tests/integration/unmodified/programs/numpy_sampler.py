"""A sampler that draws from a NumPy generator of its own."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class BalancedSampler(Sampler):
    def __init__(self, labels, seed=0):
        self.rng = np.random.default_rng(seed)
        self.groups = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self.size = min(map(len, self.groups))

    def __iter__(self):
        chosen = [self.rng.choice(g, self.size, replace=False) for g in self.groups]
        order = np.concatenate(chosen)
        self.rng.shuffle(order)
        return iter(order.tolist())

    def __len__(self):
        return self.size * len(self.groups)


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(200, 8)
y = (x.sum(1) > 1.5).long()
loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=BalancedSampler(y.numpy()))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f}")
torch.save(model.state_dict(), "model.pt")
