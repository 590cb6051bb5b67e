"""WeightedRandomSampler against imbalance, with a generator; counts what was drawn."""

from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(150, 6)
y = (x.sum(1) > 3).long()
weights = 1.0 / torch.bincount(y)[y].float()
generator = torch.Generator().manual_seed(99)
sampler = WeightedRandomSampler(weights, num_samples=len(y), replacement=True, generator=generator)
loader = DataLoader(TensorDataset(x, y), batch_size=15, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
drawn = Counter()
for epoch in range(8):
    for xb, yb in loader:
        drawn.update(yb.tolist())
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {dict(sorted(drawn.items()))} loss {loss.item():.6f}")
torch.save({"model": model.state_dict(), "drawn": dict(drawn)}, "model.pt")
