"""Mini-batches by a permutation of indices."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
N, BATCH, EPOCHS = 120, 12, 8

X = torch.randn(N, 6)
Y = X.tanh().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for epoch in range(EPOCHS):
    permutation = torch.randperm(N)
    for i in range(0, N, BATCH):
        indices = permutation[i : i + BATCH]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X[indices]), Y[indices])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {sum(losses[-10:]) / 10:.8f}")
torch.save({"model": model.state_dict(), "losses": losses}, "model.pt")
