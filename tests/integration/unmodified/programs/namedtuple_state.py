"""Functional style: a NamedTuple that is replaced at every step."""

import json
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class State(NamedTuple):
    step: int
    ema_loss: float
    best: float
    bad_steps: int


def update(state: State, loss: float) -> State:
    ema = loss if state.step == 0 else 0.95 * state.ema_loss + 0.05 * loss
    better = ema < state.best
    return State(state.step + 1, ema, min(ema, state.best), 0 if better else state.bad_steps + 1)


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    x = torch.randn(128, 6)
    loader = DataLoader(TensorDataset(x, x.cos().sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = State(0, 0.0, float("inf"), 0)
    for epoch in range(9):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0 / (1 + state.bad_steps))
            optimizer.step()
            state = update(state, loss.item())
        print(epoch, state)
    torch.save(model.state_dict(), "weights.pt")
    with open("state.json", "w") as f:
        json.dump(state._asdict(), f)


main()
