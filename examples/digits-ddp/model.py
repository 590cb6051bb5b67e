"""A small convolutional network for 8x8 scans of handwritten digits, and the scans themselves."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset


def network() -> nn.Module:
    """About 40,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(64, 10),
    )


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """1,437 scans to train on and 360 to test with, as scikit-learn ships them: nothing is downloaded."""
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(scans.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=scans.target)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Share of the scans that are read correctly."""
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right
