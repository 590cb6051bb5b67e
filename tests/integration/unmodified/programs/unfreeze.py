"""Fine-tuning: only the head at first, the backbone from step 30."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
UNFREEZE_AT = 30

backbone = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU())
head = nn.Linear(32, 4)
model = nn.Sequential(backbone, head)
for p in backbone.parameters():
    p.requires_grad = False
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

x = torch.randn(128, 10)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
step = 0
for epoch in range(10):
    model.train()
    for xb, yb in loader:
        if step == UNFREEZE_AT:
            for p in backbone.parameters():
                p.requires_grad = True
            print("backbone unfrozen")
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"epoch {epoch}: loss {loss.item():.6f}")
torch.save(model.state_dict(), "finetuned.pt")
