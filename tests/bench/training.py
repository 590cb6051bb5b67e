"""Training for the checkpoint benchmarks: a small GPT with AdamW, 213 MB of state in about 500 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LAYERS, WIDTH, HEADS, VOCABULARY, CONTEXT = 10, 384, 6, 64, 16


class Training:
    """Model and optimizer; a step takes some tenths of a second on one core."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        torch.set_num_threads(1)  # leaves the other core to the writer, or to an alternative's threads and processes
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.model: Any = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, VOCABULARY)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._tokens = torch.randint(VOCABULARY, (2, CONTEXT))

    def forward_backward(self) -> None:
        from torch.nn.functional import cross_entropy

        logits = self.model(self._tokens)
        self.optimizer.zero_grad()
        cross_entropy(logits.flatten(0, 1), self._tokens.flatten()).backward()

    def step(self) -> None:
        self.forward_backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def tensors(value: Any) -> Iterator[Any]:
    """Yield every tensor in a state."""
    if hasattr(value, "copy_"):
        yield value
        return
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in parts:
        yield from tensors(part)


class Copy:
    """Lower limit of a save: a copy of every tensor of the state into preallocated memory."""

    def __init__(self, state: Any) -> None:
        import torch

        self._sources = [tensor.detach().reshape(-1) for tensor in tensors(state)]
        self._targets = [torch.zeros_like(tensor) for tensor in self._sources]

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._sources)

    @property
    def megabytes(self) -> float:
        return self.nbytes / 1e6

    def __call__(self) -> None:
        for source, target in zip(self._sources, self._targets, strict=True):
            target.copy_(source)
