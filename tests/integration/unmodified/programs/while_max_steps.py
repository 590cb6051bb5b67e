"""`while step < max_steps` round the loader, as in many language model scripts."""

import argparse
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=95)
    parser.add_argument("--eval_every", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


def train(args):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens = torch.randint(0, 30, (1201,))
    data = TensorDataset(tokens[:-1].view(-1, 12), tokens[1:].view(-1, 12))
    loader = DataLoader(data, batch_size=10, shuffle=True)
    model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 30))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step, epoch, losses, evals = 0, 0, [], {}
    while step < args.max_steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            if step % args.eval_every == 0:
                evals[step] = sum(losses[-args.eval_every :]) / args.eval_every
                print(f"step {step} loss {evals[step]:.6f}")
            if step >= args.max_steps:
                break
        epoch += 1
    print(f"{step} steps in {epoch} epochs")
    return model, evals


if __name__ == "__main__":
    model, evals = train(get_args())
    torch.save(model.state_dict(), "lm.pt")
    with open("evals.json", "w") as f:
        json.dump(evals, f)
