"""Progressive growing: the model gets another block at epochs 3 and 6, and a new optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.stem = nn.Linear(6, 32)
        self.blocks = nn.ModuleList([nn.Linear(32, 32) for _ in range(blocks)])
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.out(x)


def grow(old, blocks):
    new = Net(blocks)
    new.load_state_dict(old.state_dict(), strict=False)
    return new


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(120, 6)
    loader = DataLoader(TensorDataset(x, x.sin().prod(1, keepdim=True)), batch_size=12, shuffle=True)
    model = Net(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(9):
        if epoch in (3, 6):
            model = grow(model, 1 + epoch // 3)
            optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 / (1 + epoch))
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {len(model.blocks)} blocks, loss {loss.item():.6f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
