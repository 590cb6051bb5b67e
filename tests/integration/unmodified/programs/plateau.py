"""ReduceLROnPlateau on the validation loss."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(11)
torch.set_num_threads(1)

x = torch.randn(160, 5)
dataset = TensorDataset(x, x.norm(dim=1, keepdim=True) + 0.3 * torch.randn(160, 1))
train_set, val_set = random_split(dataset, [120, 40])
train_loader = DataLoader(train_set, batch_size=15, shuffle=True)
val_loader = DataLoader(val_set, batch_size=20)
model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)


@torch.no_grad()
def evaluate():
    model.eval()
    total = 0.0
    for a, b in val_loader:
        total += nn.functional.mse_loss(model(a), b, reduction="sum").item()
    model.train()
    return total / len(val_set)


lrs = []
for epoch in range(12):
    for a, b in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    val = evaluate()
    scheduler.step(val)
    lrs.append(optimizer.param_groups[0]["lr"])
    print(f"epoch {epoch}: val {val:.6f} lr {lrs[-1]:.5f}")
torch.save({"model": model.state_dict(), "lrs": lrs}, "plateau.pt")
