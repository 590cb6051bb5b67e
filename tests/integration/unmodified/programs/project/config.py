from dataclasses import dataclass, field


@dataclass
class OptimConfig:
    lr: float = 4e-3
    weight_decay: float = 0.01
    gamma: float = 0.9


@dataclass
class Config:
    seed: int = 0
    epochs: int = 8
    batch_size: int = 12
    hidden: int = 48
    optim: OptimConfig = field(default_factory=OptimConfig)
