"""Exponential moving average of the weights, kept in a dict."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)
DECAY = 0.95

model = nn.Sequential(nn.Linear(32, 400), nn.GELU(), nn.Linear(400, 200), nn.GELU(), nn.Linear(200, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ema = {name: p.detach().clone() for name, p in model.named_parameters()}


@torch.no_grad()
def update_ema():
    for name, p in model.named_parameters():
        ema[name].mul_(DECAY).add_(p, alpha=1 - DECAY)


x = torch.randn(160, 32)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=16, shuffle=True, drop_last=True)
for epoch in range(7):
    for xb, yb in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        update_ema()
    print(f"epoch {epoch} loss {loss.item():.6f}")

torch.save(model.state_dict(), "last.pt")
torch.save(ema, "ema.pt")
print("done")
