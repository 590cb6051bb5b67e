"""Stochastic weight averaging with torch.optim.swa_utils."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
EPOCHS, SWA_START = 9, 5

x = torch.randn(120, 8)
loader = DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=SWA_START)
swa_model = AveragedModel(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)

for epoch in range(EPOCHS):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    if epoch >= SWA_START:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    print(f"epoch {epoch}: lr {optimizer.param_groups[0]['lr']:.5f} loss {loss.item():.6f}")
update_bn(loader, swa_model)
torch.save({"model": model.state_dict(), "swa": swa_model.state_dict()}, "swa.pt")
