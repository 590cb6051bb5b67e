"""Two tasks weighted by learned uncertainties (Kendall et al.)."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(160, 8)
data = TensorDataset(x, x[:, :1] * 2, (x.sum(1, keepdim=True) > 0).float())
loader = DataLoader(data, batch_size=16, shuffle=True)

trunk = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
head_a, head_b = nn.Linear(32, 1), nn.Linear(32, 1)
log_var_a = nn.Parameter(torch.zeros(1))
log_var_b = nn.Parameter(torch.zeros(1))
params = [*trunk.parameters(), *head_a.parameters(), *head_b.parameters(), log_var_a, log_var_b]
optimizer = torch.optim.Adam(params, lr=1e-2)

history = []
for epoch in range(8):
    total = 0.0
    for xb, ya, yb in loader:
        h = trunk(xb)
        loss_a = nn.functional.mse_loss(head_a(h), ya)
        loss_b = nn.functional.binary_cross_entropy_with_logits(head_b(h), yb)
        loss = (-log_var_a).exp() * loss_a + log_var_a + (-log_var_b).exp() * loss_b + log_var_b
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    history.append({"epoch": epoch, "loss": total / len(loader), "weights": [log_var_a.item(), log_var_b.item()]})
    print(f"epoch {epoch}: loss {total / len(loader):.6f} log_vars {log_var_a.item():.5f} {log_var_b.item():.5f}")

torch.save({"trunk": trunk.state_dict(), "a": head_a.state_dict(), "b": head_b.state_dict()}, "model.pt")
with open("history.json", "w") as f:
    json.dump(history, f)
