"""enumerate(loader, 1), saves every 25 global steps, logs the running loss every 10 batches (CIFAR tutorial)."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 3 * 3, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        return self.fc1(torch.flatten(x, 1))


torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.randn(160, 3, 8, 8)
labels = images[:, 0].flatten(1)[:, :10].argmax(1)
trainloader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

for epoch in range(5):
    running_loss = 0.0
    for i, data in enumerate(trainloader, 1):
        inputs, targets = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 10 == 0:
            print(f"[{epoch + 1}, {i:5d}] loss: {running_loss / 10:.6f}")
            running_loss = 0.0
        if (epoch * len(trainloader) + i) % 25 == 0:
            torch.save(net.state_dict(), f"step{epoch * len(trainloader) + i}.pth")
print("Finished Training")
torch.save(net.state_dict(), "cifar_net.pth")
