"""Lookahead round Adam: slow weights every k steps."""

from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lookahead:
    def __init__(self, base, k=5, alpha=0.5):
        self.base = base
        self.k, self.alpha = k, alpha
        self.counter = 0
        self.state = defaultdict(dict)
        for group in base.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.data.clone()

    def zero_grad(self):
        self.base.zero_grad()

    def step(self):
        self.base.step()
        self.counter += 1
        if self.counter % self.k:
            return
        for group in self.base.param_groups:
            for p in group["params"]:
                slow = self.state[p]["slow"]
                slow += self.alpha * (p.data - slow)
                p.data.copy_(slow)


torch.manual_seed(5)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 250), nn.ReLU(), nn.Linear(250, 3))
opt = Lookahead(torch.optim.Adam(net.parameters(), lr=1e-3), k=6)
x = torch.randn(180, 20)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=15, shuffle=True)
for epoch in range(6):
    correct = 0
    for xb, yb in loader:
        out = net(xb)
        loss = nn.functional.cross_entropy(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        correct += (out.argmax(1) == yb).sum().item()
    print(f"epoch {epoch}: train acc {correct / len(y):.4f}, loss {loss.item():.6f}")
torch.save(net.state_dict(), "net.pth")
