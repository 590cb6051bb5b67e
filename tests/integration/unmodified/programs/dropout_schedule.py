"""Raises dropout while it trains."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 64), nn.Linear(64, 1)
        self.drop = nn.Dropout(0.0)
        self.temperature = 1.0

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x)))) / self.temperature


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(120, 8)
loader = DataLoader(TensorDataset(x, x[:, :2].prod(1, keepdim=True)), batch_size=12, shuffle=True)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(8):
    for i, (xb, yb) in enumerate(loader):
        if i % 3 == 0:
            net.drop.p = min(0.5, net.drop.p + 0.02)
            net.temperature *= 0.99
        loss = nn.functional.mse_loss(net(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: p={net.drop.p:.2f} T={net.temperature:.4f} loss={loss.item():.6f}")
torch.save(net.state_dict(), "net.pt")
