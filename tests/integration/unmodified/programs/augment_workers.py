"""Random augmentation in two loader workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n, train):
        g = torch.Generator().manual_seed(n)
        self.images = torch.randn(n, 1, 8, 8, generator=g)
        self.labels = self.images.mean((1, 2, 3)).gt(0).long()
        self.train = train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        if self.train:
            if torch.rand(1).item() < 0.5:
                image = image.flip(-1)
            image = image + 0.05 * torch.randn_like(image)
        return image, self.labels[i]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_loader = DataLoader(Images(96, True), batch_size=12, shuffle=True, num_workers=2)
    test_loader = DataLoader(Images(40, False), batch_size=40)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(6):
        model.train()
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(a).argmax(1) == b).sum().item() for a, b in test_loader)
        print(f"epoch {epoch}: loss {loss.item():.6f}, test {correct}/40")
    torch.save(model.state_dict(), "cnn.pt")


if __name__ == "__main__":
    main()
