"""Batches of sequences of similar length: a custom batch_sampler that shuffles with `random`."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.items = [torch.randint(1, 20, (3 + i % 9,), generator=g) for i in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.items[i].float().mean() / 20


class BucketBatchSampler:
    def __init__(self, lengths, batch_size):
        ids = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [ids[i : i + batch_size] for i in range(0, len(ids), batch_size)]

    def __iter__(self):
        random.shuffle(self.batches)
        yield from self.batches

    def __len__(self):
        return len(self.batches)


def collate(batch):
    return pad_sequence([s for s, _ in batch], batch_first=True), torch.stack([t for _, t in batch])


random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
dataset = Sequences(120)
sampler = BucketBatchSampler([len(s) for s in dataset.items], 10)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
embed, rnn, head = nn.Embedding(20, 12, padding_idx=0), nn.GRU(12, 16, batch_first=True), nn.Linear(16, 1)
params = [p for m in (embed, rnn, head) for p in m.parameters()]
optimizer = torch.optim.Adam(params, lr=5e-3)
for epoch in range(7):
    for tokens, target in loader:
        _, h = rnn(embed(tokens))
        loss = nn.functional.mse_loss(head(h[-1]).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.8f}")
torch.save({"embed": embed.state_dict(), "rnn": rnn.state_dict(), "head": head.state_dict()}, "model.pt")
