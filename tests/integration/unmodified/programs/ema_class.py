"""EMA with shadow and backup, as many repositories have it; evaluates with the averaged weights."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.model = model
        self.decay = decay
        self.shadow = {}
        self.backup = {}
        self.updates = 0

    def register(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = (1.0 - decay) * param.data + decay * self.shadow[name]

    def apply_shadow(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.backup[name] = param.data
                param.data = self.shadow[name]

    def restore(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                param.data = self.backup[name]
        self.backup = {}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))
    ema = EMA(model, 0.97)
    ema.register()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    x = torch.randn(144, 16)
    y = x.prod(1, keepdim=True).tanh() + x[:, :1]
    train = DataLoader(TensorDataset(x[:112], y[:112]), batch_size=14, shuffle=True)
    val = DataLoader(TensorDataset(x[112:], y[112:]), batch_size=32)
    results = []
    for epoch in range(8):
        model.train()
        for xb, yb in train:
            loss = nn.functional.smooth_l1_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update()
        ema.apply_shadow()
        model.eval()
        with torch.no_grad():
            val_loss = sum(nn.functional.mse_loss(model(a), b).item() for a, b in val) / len(val)
        ema.restore()
        results.append(val_loss)
        print(f"[{epoch}] val (ema) {val_loss:.6f}")
    torch.save({"model": model.state_dict(), "ema": ema.shadow, "updates": ema.updates}, "final.pth")
    with open("results.json", "w") as f:
        json.dump(results, f)


if __name__ == "__main__":
    main()
