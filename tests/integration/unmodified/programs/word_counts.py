"""Skip-gram with co-occurrence counts that are collected while it trains."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB = 300

corpus = torch.randint(0, VOCAB, (2001,))
pairs = TensorDataset(corpus[:-1], corpus[1:])
loader = DataLoader(pairs, batch_size=40, shuffle=True)
center, context = nn.Embedding(VOCAB, 16), nn.Embedding(VOCAB, 16)
optimizer = torch.optim.Adam([*center.parameters(), *context.parameters()], lr=1e-2)
counts = torch.zeros(VOCAB, VOCAB)
seen = np.zeros(VOCAB * 400, dtype=np.int64)

for epoch in range(2):
    for a, b in loader:
        counts.index_put_((a, b), torch.ones(len(a)), accumulate=True)
        np.add.at(seen, a.numpy(), 1)
        frequency = counts.sum(1)[a] + 1
        logits = (center(a) * context(b)).sum(1)
        noise = (center(a) * context(torch.randint(0, VOCAB, b.shape))).sum(1)
        loss = -(nn.functional.logsigmoid(logits) + nn.functional.logsigmoid(-noise)).div(frequency.sqrt()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.6f}, {int(counts.sum())} pairs")

np.save("counts.npy", counts.numpy())
np.save("seen.npy", seen[:VOCAB])
torch.save(center.state_dict(), "embedding.pt")
