"""Asks for batches by next() and makes a new iterator at StopIteration."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(120, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

data_iter = iter(loader)
for iteration in range(90):
    try:
        xb, yb = next(data_iter)
    except StopIteration:
        data_iter = iter(loader)
        xb, yb = next(data_iter)
    loss = nn.functional.mse_loss(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 15 == 0:
        print(f"iteration {iteration} loss {loss.item():.6f}")
torch.save(model.state_dict(), "model.pt")
print(f"final loss {loss.item():.6f}")
