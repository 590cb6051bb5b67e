"""Gradient accumulation over four batches, gradient clipping, warm-up with LambdaLR."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
ACCUMULATE = 4

x = torch.randn(200, 12)
y = x[:, ::2].sum(1).gt(0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
updates = 0
optimizer.zero_grad()
for epoch in range(6):
    for i, (xb, yb) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(xb), yb) / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            updates += 1
    print(f"epoch {epoch}: {updates} updates, lr {scheduler.get_last_lr()[0]:.5f}, loss {loss.item():.6f}")
torch.save({"model": model.state_dict(), "updates": updates}, "model.pt")
