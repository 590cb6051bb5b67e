"""DQN on a little chain: replay memory, target network, epsilon that decays; no DataLoader."""

import json
import random
from collections import deque

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
LENGTH, GAMMA = 6, 0.9

policy = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))
target = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
memory = deque(maxlen=300)
eye = torch.eye(LENGTH)
epsilon, steps, returns = 1.0, 0, []

for episode in range(16):
    position, total = 0, 0.0
    for _ in range(12):
        if random.random() < epsilon:
            action = random.randrange(2)
        else:
            action = int(policy(eye[position]).argmax())
        following = min(LENGTH - 1, position + 1) if action else max(0, position - 1)
        reward = 1.0 if following == LENGTH - 1 else 0.0
        memory.append((position, action, reward, following))
        position, total, steps = following, total + reward, steps + 1
        if len(memory) >= 16:
            s, a, r, n = zip(*random.sample(memory, 16))
            q = policy(eye[list(s)]).gather(1, torch.tensor(a).unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                goal = torch.tensor(r) + GAMMA * target(eye[list(n)]).max(1).values
            loss = nn.functional.smooth_l1_loss(q, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if steps % 30 == 0:
            target.load_state_dict(policy.state_dict())
    epsilon = max(0.05, epsilon * 0.85)
    returns.append(total)
    print(f"episode {episode}: return {total}, epsilon {epsilon:.4f}")
torch.save(policy.state_dict(), "policy.pt")
with open("returns.json", "w") as f:
    json.dump(returns, f)
