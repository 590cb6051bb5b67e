"""Contrastive learning with a momentum encoder and a queue of keys."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

DIM, SIZE, M, T = 64, 1280, 0.99, 0.1


class Pairs(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 24)
        self.noise = torch.randn(n, 24) * 0.1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i] + self.noise[i]


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    encoder_q = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, DIM))
    encoder_k = copy.deepcopy(encoder_q)
    for p in encoder_k.parameters():
        p.requires_grad = False
    queue = F.normalize(torch.randn(DIM, SIZE), dim=0)
    ptr = 0
    optimizer = torch.optim.SGD(encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Pairs(160), batch_size=16, shuffle=True, drop_last=True)
    for epoch in range(8):
        losses = 0.0
        for im_q, im_k in loader:
            q = F.normalize(encoder_q(im_q), dim=1)
            with torch.no_grad():
                for a, b in zip(encoder_q.parameters(), encoder_k.parameters()):
                    b.data = b.data * M + a.data * (1.0 - M)
                k = F.normalize(encoder_k(im_k), dim=1)
            l_pos = (q * k).sum(1, keepdim=True)
            l_neg = q @ queue.clone()
            logits = torch.cat([l_pos, l_neg], 1) / T
            loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            queue[:, ptr : ptr + len(k)] = k.T
            ptr = (ptr + len(k)) % SIZE
            losses += loss.item()
        print(f"epoch {epoch} loss {losses / len(loader):.6f} ptr {ptr}")
    torch.save({"q": encoder_q.state_dict(), "k": encoder_k.state_dict(), "queue": queue}, "moco.pth")


main()
