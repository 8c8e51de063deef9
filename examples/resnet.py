# SPDX-License-Identifier: Apache-2.0
"""A small ResNet learns the handwritten digits of scikit-learn (1,797 images of 8x8), on the tpu device.

python examples/resnet.py
Measured on a virtual device of two cores:
0.986 of 359 unseen images right after 5 epochs, in 17 s (16 s of them compiling).
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions beside a shortcut, which halves the image where the width grows."""

    def __init__(self, width_in: int, width: int):
        super().__init__()
        stride = 1 if width_in == width else 2
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(width_in, width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet(width: int = 16, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), Block(width, width), Block(width, 2 * width), Block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip


def main(device: str = "tpu", epochs: int = 5, batch: int = 64, compile: bool = True) -> float:
    """Trains and returns the accuracy on the fifth of the images that was kept aside."""
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order].to(device), y[order].to(device)
    held = len(x) // 5
    model = resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    run = torch.compile(model, backend="tpu" if device == "tpu" else "inductor") if compile else model
    start = time.perf_counter()
    for epoch in range(epochs):
        model.train()
        total = torch.zeros((), device=device)
        places = held + torch.randperm(len(x) - held)
        places = places[: len(places) // batch * batch].view(-1, batch).to(device)
        for i in places:
            loss = F.cross_entropy(run(x[i]), y[i])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        print(f"epoch {epoch}: loss {total.item() / len(places):.3f}, {time.perf_counter() - start:.1f} s", flush=True)
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[:held]).argmax(1) == y[:held]).float().mean().item()
    print(f"accuracy on {held} unseen images: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    main(args.device, args.epochs, compile=not args.eager)
