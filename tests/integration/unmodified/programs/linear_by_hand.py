"""Linear regression with W and b of its own, as in the first chapter of a course."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
torch.set_num_threads(1)

true_w = torch.tensor([2.0, -3.4, 1.1])
features = torch.randn(200, 3)
labels = features @ true_w + 4.2 + 0.01 * torch.randn(200)
train_iter = DataLoader(TensorDataset(features, labels), batch_size=20, shuffle=True)

W = torch.normal(0, 0.01, size=(3,), requires_grad=True)
b = torch.zeros(1, requires_grad=True)


def net(x):
    return x @ W + b


trainer = torch.optim.Adam([W, b], lr=0.05)
for epoch in range(8):
    for X, y in train_iter:
        loss = ((net(X) - y) ** 2).mean()
        trainer.zero_grad()
        loss.backward()
        trainer.step()
    with torch.no_grad():
        print(f"epoch {epoch + 1}, loss {((net(features) - labels) ** 2).mean().item():.8f}")

torch.save({"W": W.detach(), "b": b.detach()}, "linear.pt")
print("error in estimating W:", (true_w - W.detach()).tolist())
