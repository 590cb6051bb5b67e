"""A writer of events like TensorBoard's: numbered records in a binary file, buffered, flushed now and then."""

import struct

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SummaryWriter:
    def __init__(self, path):
        self.file = open(path, "wb")
        self.records = 0

    def add_scalar(self, tag, value, step):
        name = tag.encode()
        self.file.write(struct.pack("<IIHd", self.records, step, len(name), value) + name)
        self.records += 1
        if self.records % 25 == 0:
            self.file.flush()

    def close(self):
        self.file.close()


torch.manual_seed(0)
torch.set_num_threads(1)
writer = SummaryWriter("events.bin")
x = torch.randn(120, 5)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).relu()), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
n = 0
for epoch in range(8):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("train/loss", loss.item(), n)
        n += 1
    writer.add_scalar("train/epoch", epoch, n)
    print(f"epoch {epoch} {loss.item():.6f}")
writer.close()
torch.save(model.state_dict(), "model.pt")
