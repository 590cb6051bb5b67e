"""CutMix-like augmentation in the main process, from a NumPy generator that a class holds."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise:
    def __init__(self, seed, scale):
        self.rng = np.random.default_rng(seed)
        self.scale = scale

    def __call__(self, x):
        return x + self.rng.normal(scale=self.scale, size=x.shape).astype(np.float32)


class Signals(Dataset):
    def __init__(self, n, transform=None):
        rng = np.random.RandomState(5)
        self.x = rng.randn(n, 10).astype(np.float32)
        self.y = self.x[:, :5].sum(1, keepdims=True)
        self.transform = transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return (self.transform(x) if self.transform else x), self.y[i]


torch.manual_seed(0)
np.random.seed(0)
torch.set_num_threads(1)
loader = DataLoader(Signals(120, Noise(1, 0.1)), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(8):
    for xb, yb in loader:
        keep = torch.from_numpy(np.random.rand(*xb.shape) > 0.1)
        loss = nn.functional.mse_loss(model(xb * keep), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.6f}")
torch.save(model.state_dict(), "model.pt")
