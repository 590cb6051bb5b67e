"""Masked language modelling: the collate function masks at random."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, MASK = 50, 0


class Collator:
    def __init__(self, p=0.3):
        self.p = p
        self.masked = 0

    def __call__(self, rows):
        tokens = torch.stack([row[0] for row in rows])
        mask = torch.rand(tokens.shape) < self.p
        self.masked += int(mask.sum())
        labels = tokens.masked_fill(~mask, -100)
        return tokens.masked_fill(mask, MASK), labels


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randint(1, VOCAB, (100, 12)))
    collator = Collator()
    loader = DataLoader(data, batch_size=10, shuffle=True, collate_fn=collator)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(VOCAB, 32), layer, nn.Linear(32, VOCAB))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(6):
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.6f}, masked {collator.masked}")
    torch.save(model.state_dict(), "mlm.pt")


if __name__ == "__main__":
    main()
