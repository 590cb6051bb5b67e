"""class Trainer with train(), validate() and save()."""

import json
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, model, train_loader, val_loader, lr=3e-3, max_epochs=8):
        self.model = model
        self.train_loader, self.val_loader = train_loader, val_loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6], 0.5)
        self.max_epochs = max_epochs
        self.global_step = 0
        self.best_loss = float("inf")
        self.history = {"train": [], "val": []}

    def train(self):
        for self.epoch in range(self.max_epochs):
            self.history["train"].append(self._train_epoch())
            val = self._validate()
            self.history["val"].append(val)
            self.scheduler.step()
            if val < self.best_loss:
                self.best_loss = val
                self.save("best.pt")
            log.info("epoch %d step %d val %.6f", self.epoch, self.global_step, val)
        self.save("last.pt")
        with open("history.json", "w") as f:
            json.dump(self.history, f)
        print(f"best {self.best_loss:.8f} after {self.global_step} steps")

    def _train_epoch(self):
        self.model.train()
        losses = []
        for batch in self.train_loader:
            losses.append(self._step(batch))
        return sum(losses) / len(losses)

    def _step(self, batch):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.global_step += 1
        return loss.item()

    @torch.no_grad()
    def _validate(self):
        self.model.eval()
        return sum(nn.functional.mse_loss(self.model(x), y).item() for x, y in self.val_loader)

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "step": self.global_step, "best": self.best_loss}, path)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(150, 7)
    y = x.pow(2).mean(1, keepdim=True)
    model = nn.Sequential(nn.Linear(7, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))
    train_loader = DataLoader(TensorDataset(x[:110], y[:110]), batch_size=11, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[110:], y[110:]), batch_size=20)
    Trainer(model, train_loader, val_loader).train()
