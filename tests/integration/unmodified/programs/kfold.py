"""Cross-validation: a new model for each of four folds."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
K = 4

x = torch.randn(96, 6)
dataset = TensorDataset(x, x.sum(1, keepdim=True).sigmoid())
folds = torch.randperm(len(dataset)).chunk(K)
scores = []
for k in range(K):
    train_ids = torch.cat([f for i, f in enumerate(folds) if i != k]).tolist()
    train_loader = DataLoader(Subset(dataset, train_ids), batch_size=12, shuffle=True)
    test_loader = DataLoader(Subset(dataset, folds[k].tolist()), batch_size=24)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        model.train()
        for a, b in train_loader:
            loss = nn.functional.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        score = sum(nn.functional.mse_loss(model(a), b).item() for a, b in test_loader)
    scores.append(score)
    torch.save(model.state_dict(), f"fold{k}.pt")
    print(f"fold {k}: {score:.6f}")
with open("scores.json", "w") as f:
    json.dump({"scores": scores, "mean": sum(scores) / K}, f)
print(f"mean {sum(scores) / K:.6f}")
