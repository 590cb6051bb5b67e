"""A GAN with two optimizers, as in the PyTorch DCGAN tutorial."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

manualSeed = 999
torch.manual_seed(manualSeed)
torch.set_num_threads(1)
nz, lr, beta1, num_epochs = 8, 2e-3, 0.5, 5

dataset = TensorDataset(torch.randn(160, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.8]]) + 2.0)
dataloader = DataLoader(dataset, batch_size=10, shuffle=True)


def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight.data, 0.0, 0.1)


netG = nn.Sequential(nn.Linear(nz, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
netD = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(16, nz)
optimizerD = torch.optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

samples, G_losses, D_losses = [], [], []
iters = 0
for epoch in range(num_epochs):
    for i, (real,) in enumerate(dataloader, 0):
        netD.zero_grad()
        label = torch.ones(len(real))
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(len(real), nz))
        errD_fake = criterion(netD(fake.detach()).view(-1), torch.zeros(len(real)))
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        if i % 8 == 0:
            print(f"[{epoch}/{num_epochs}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
        G_losses.append(errG.item())
        D_losses.append(errD.item())
        if iters % 20 == 0:
            with torch.no_grad():
                samples.append(netG(fixed_noise).detach())
        iters += 1
torch.save({"G": netG.state_dict(), "D": netD.state_dict(), "samples": torch.stack(samples)}, "gan.pth")
json.dump({"G": G_losses, "D": D_losses}, open("losses.json", "w"))
