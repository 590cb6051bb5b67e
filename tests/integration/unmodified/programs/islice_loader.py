"""Fixed number of batches per epoch with itertools.islice."""

from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
BATCHES_PER_EPOCH = 12

x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, (x[:, 0] * x[:, 1] > 0).float()), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
batches = 0
for epoch in range(8):
    for xb, yb in islice(loader, BATCHES_PER_EPOCH):
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb).squeeze(1), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batches += 1
    print(f"epoch {epoch}: {batches} batches, loss {loss.item():.6f}")
torch.save(model.state_dict(), "model.pt")
with open("batches.txt", "w") as f:
    f.write(f"{batches}\n")
