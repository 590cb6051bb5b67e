"""Weight norm and spectral norm."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Critic(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = spectral_norm(nn.Linear(dim, 32))
        self.b = weight_norm(nn.Linear(32, 32))
        self.c = spectral_norm(nn.Linear(32, 1))

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


x = torch.randn(120, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
critic = Critic(6)
optimizer = torch.optim.Adam(critic.parameters(), lr=5e-3)
for epoch in range(8):
    critic.train()
    for xb, yb in loader:
        loss = nn.functional.mse_loss(critic(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    critic.eval()
    with torch.no_grad():
        print(f"epoch {epoch}: {nn.functional.mse_loss(critic(x), y).item():.6f}")
torch.save(critic.state_dict(), "critic.pt")
