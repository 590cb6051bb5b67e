"""Training state in a dataclass with slots."""

import json
from dataclasses import asdict, dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(slots=True)
class TrainState:
    step: int = 0
    best: float = float("inf")
    best_step: int = -1
    running: float = 0.0
    history: list[float] = field(default_factory=list)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(120, 5)
    y = (x**2).sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    state = TrainState()
    for epoch in range(8):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
            state.running = 0.9 * state.running + 0.1 * loss.item()
            state.history.append(loss.item())
            if loss.item() < state.best:
                state.best, state.best_step = loss.item(), state.step
        print(f"epoch {epoch} running {state.running:.6f} best {state.best:.6f}@{state.best_step}")
    torch.save(model.state_dict(), "model.pt")
    with open("state.json", "w") as f:
        json.dump(asdict(state), f)


if __name__ == "__main__":
    main()
