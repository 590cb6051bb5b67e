"""Constant learning rate first, a cosine schedule from step 35."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(120, 10)
loader = DataLoader(TensorDataset(x, x[:, :3].sum(1, keepdim=True)), batch_size=12, shuffle=True)
model = nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
scheduler = None
step = 0
for epoch in range(8):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 35:
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=45, eta_min=1e-4)
        elif scheduler is not None:
            scheduler.step()
    print(f"epoch {epoch}: lr {optimizer.param_groups[0]['lr']:.6f} loss {loss.item():.8f}")
torch.save(model.state_dict(), "model.pt")
