from torch import nn


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x):
        return x + self.net(x)


def build_model(cfg):
    return nn.Sequential(nn.Linear(8, cfg.hidden), Residual(cfg.hidden), Residual(cfg.hidden), nn.Linear(cfg.hidden, 1))
