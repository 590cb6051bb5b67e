"""A character model with get_batch(), estimate_loss() and `while True`, after nanoGPT's train.py."""

import math

import torch
from torch import nn

max_iters, eval_interval, warmup_iters, learning_rate, min_lr = 90, 15, 10, 5e-3, 5e-4
batch_size, block_size, vocab_size = 8, 16, 40
torch.manual_seed(1337)
torch.set_num_threads(1)
data = torch.randint(0, vocab_size, (3000,))
splits = {"train": data[:2700], "val": data[2700:]}


def get_batch(split):
    source = splits[split]
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, vocab_size))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))


def loss_of(x, y):
    return nn.functional.cross_entropy(model(x).view(-1, vocab_size), y.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: sum(loss_of(*get_batch(split)).item() for _ in range(3)) / 3 for split in splits}
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


iter_num, best_val_loss = 0, 1e9
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            torch.save({"model": model.state_dict(), "iter_num": iter_num, "best": best_val_loss}, "ckpt.pt")
    loss = loss_of(*get_batch("train"))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
torch.save(model.state_dict(), "final.pt")
