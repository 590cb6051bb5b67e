"""A project of several files."""

import engine
import torch
import utils
from config import Config
from model import build_model

if __name__ == "__main__":
    cfg = Config()
    utils.set_seed(cfg.seed)
    train_loader, val_loader = utils.make_loaders(cfg)
    model = build_model(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optim.lr, weight_decay=cfg.optim.weight_decay)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, cfg.optim.gamma)
    best = engine.fit(model, optimizer, scheduler, train_loader, val_loader, cfg)
    torch.save(model.state_dict(), "last.pt")
    utils.write_history("history.json")
    print(f"best {best:.6f}")
