"""tqdm round epochs and batches, with a postfix."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm, trange

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(120, 6)
loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True).abs()), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for epoch in trange(8, desc="epochs"):
    bar = tqdm(loader, desc=f"epoch {epoch}", leave=False)
    for xb, yb in bar:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{loss.item():.4f}")
    tqdm.write(f"epoch {epoch}: {sum(losses[-10:]) / 10:.8f}")
torch.save({"model": model.state_dict(), "losses": losses}, "model.pt")
