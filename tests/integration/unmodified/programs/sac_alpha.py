"""The entropy temperature of SAC: log_alpha has an optimizer of its own; a target network by Polyak averaging."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Agent:
    def __init__(self, obs, act):
        self.actor = nn.Sequential(nn.Linear(obs, 32), nn.ReLU(), nn.Linear(32, act))
        self.critic = nn.Sequential(nn.Linear(obs + act, 32), nn.ReLU(), nn.Linear(32, 1))
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-3)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=1e-2)
        self.updates = 0

    def update(self, s, a, r, n):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            noise = torch.randn_like(a)
            goal = r + 0.9 * (self.target(torch.cat([n, self.actor(n) + noise], 1)) - alpha)
        critic_loss = nn.functional.mse_loss(self.critic(torch.cat([s, a], 1)), goal)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        action = self.actor(s)
        actor_loss = (alpha * action.pow(2).sum(1, keepdim=True) - self.critic(torch.cat([s, action], 1))).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        alpha_loss = (self.log_alpha.exp() * (action.detach().pow(2).mean() - 0.5)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        for p, q in zip(self.critic.parameters(), self.target.parameters()):
            q.data.lerp_(p.data, 0.05)
        self.updates += 1
        return critic_loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    s = torch.randn(120, 4)
    replay = TensorDataset(s, torch.randn(120, 2), s.sum(1, keepdim=True).tanh(), torch.randn(120, 4))
    agent = Agent(4, 2)
    for epoch in range(7):
        for batch in DataLoader(replay, batch_size=12, shuffle=True):
            loss = agent.update(*batch)
        print(f"epoch {epoch}: critic {loss:.6f} alpha {agent.log_alpha.exp().item():.6f}")
    torch.save({"actor": agent.actor.state_dict(), "log_alpha": agent.log_alpha.detach()}, "agent.pt")
