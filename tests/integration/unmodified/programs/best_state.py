"""Keeps the best weights in memory and loads them at the end, as the PyTorch transfer learning tutorial does."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def make_data(n):
    x = torch.randn(n, 64)
    return TensorDataset(x, (x[:, :8].sum(1) > 0).long())


dataloaders = {
    "train": DataLoader(make_data(128), batch_size=16, shuffle=True),
    "val": DataLoader(make_data(64), batch_size=32),
}
dataset_sizes = {k: len(v.dataset) for k, v in dataloaders.items()}


def train_model(model, criterion, optimizer, scheduler, num_epochs=8):
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss, running_corrects = 0.0, 0
            for inputs, labels in dataloaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    preds = outputs.argmax(1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += (preds == labels).sum().item()
            if phase == "train":
                scheduler.step()
            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects / dataset_sizes[phase]
            print(f"{epoch} {phase} Loss: {epoch_loss:.6f} Acc: {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
    print(f"Best val Acc: {best_acc:4f}")
    model.load_state_dict(best_model_wts)
    return model


model = nn.Sequential(nn.Linear(64, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
model = train_model(model, nn.CrossEntropyLoss(), optimizer, scheduler)
torch.save(model.state_dict(), "best.pt")
