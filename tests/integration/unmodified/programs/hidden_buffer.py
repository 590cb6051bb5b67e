"""Centers its targets by a running mean, in a buffer that is not persistent."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Centered(nn.Module):
    def __init__(self, dim, momentum=0.9):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 4))
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(4), persistent=False)

    def forward(self, x):
        out = self.net(x)
        if self.training:
            with torch.no_grad():
                self.center = self.center * self.momentum + out.mean(0) * (1 - self.momentum)
        return out - self.center


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Centered(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    x = torch.randn(120, 6)
    y = torch.randn(120, 4)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    for epoch in range(8):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} {loss.item():.6f} center {model.center.norm().item():.6f}")
    model.eval()
    torch.save({"model": model.state_dict(), "predictions": model(x).detach()}, "model.pt")


main()
