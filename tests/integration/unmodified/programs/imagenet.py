"""The shape of the PyTorch ImageNet example: meters, save_checkpoint() that copies the best one."""

import argparse
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="training")
parser.add_argument("--epochs", default=8, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--lr", default=0.4, type=float)
parser.add_argument("-p", "--print-freq", default=4, type=int)

best_acc1 = 0


def main():
    global best_acc1
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    x = torch.randn(240, 3, 4, 4)
    y = x.flatten(1)[:, :5].argmax(1)
    train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=40)
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, args)
        acc1 = validate(val_loader, model)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_acc1": best_acc1,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            is_best,
        )


def train(train_loader, model, criterion, optimizer, epoch, args):
    losses = AverageMeter("Loss")
    model.train()
    for i, (images, target) in enumerate(train_loader):
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i}/{len(train_loader)}] Loss {losses.val:.4e} ({losses.avg:.4e})")


def validate(val_loader, model):
    top1 = AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            top1.update((model(images).argmax(1) == target).float().mean().item() * 100, images.size(0))
    print(f" * Acc@1 {top1.avg:.3f}")
    return top1.avg


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


if __name__ == "__main__":
    main()
