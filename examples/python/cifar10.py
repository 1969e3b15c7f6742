"""A convolutional network on CIFAR-10 with the DeepSpeed interface: a DeepSpeed script with one changed import.

cleave launch -n 2 -- python examples/python/cifar10.py --deepspeed --deepspeed_config examples/python/cifar10.json [--data FOLDER]

FOLDER contains the binary files of CIFAR-10 (data_batch_1.bin, ...): records of a label byte and 3 x 32 x 32 bytes. Without it, the script
generates files of this format with colored stripes in noise; the color and direction are the class.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

import cleave as deepspeed
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

RECORD, CLASSES = 1 + 3 * 32 * 32, 10


def generate(path: pathlib.Path, samples: int, seed: int) -> None:
    """Writes records of noisy stripes; the class is their direction and color."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, samples, dtype=np.uint8)
    at = np.arange(32)
    stripes = [np.sin((at[None, :] if k % 2 else at[:, None]) * 0.9) * np.ones((32, 32)) for k in range(2)]
    records = np.empty((samples, RECORD), np.uint8)
    for record, label in zip(records, labels, strict=True):
        image = draw.normal(128, 40, (3, 32, 32))
        image[label // 2 % 3] += 45 * stripes[label % 2]
        image[(label // 2 + 1) % 3] += (label // 6) * 45 * stripes[label % 2]
        record[0], record[1:] = label, image.clip(0, 255).reshape(-1).astype(np.uint8)
    path.write_bytes(records.tobytes())


def read(paths: list[pathlib.Path]) -> torch.utils.data.TensorDataset:
    """Reads binary files; returns the images in [-1, 1] and their labels."""
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, RECORD) for path in paths])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 127.5 - 1)
    return torch.utils.data.TensorDataset(images, torch.from_numpy(records[:, 0].astype(np.int64)))


class Net(nn.Module):
    """Two convolutions and three linear layers, as in the PyTorch tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="a folder with CIFAR-10's binary files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--output", type=pathlib.Path, help="where the checkpoint goes")
    return deepspeed.add_config_arguments(parser).parse_args()


def data_of(args: argparse.Namespace) -> tuple[torch.utils.data.TensorDataset, torch.utils.data.TensorDataset]:
    """Returns the training and test data."""
    if args.data:
        return read(sorted(args.data.glob("data_batch_*.bin"))), read([args.data / "test_batch.bin"])
    with tempfile.TemporaryDirectory() as folder:  # every rank generates the same data
        paths = [pathlib.Path(folder, name) for name in ("data_batch_1.bin", "test_batch.bin")]
        for seed, (path, samples) in enumerate(zip(paths, (2000, 500), strict=True)):
            generate(path, samples, seed)
        return read(paths[:1]), read(paths[1:])


def main() -> None:
    args = parsed()
    torch.manual_seed(0)
    trained_on, held_out = data_of(args)
    net = Net()
    engine, _, loader, _ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters(), training_data=trained_on)
    dtype = engine.get_data_types()[0]
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(engine(images.to(engine.device, dtype)).float(), labels.to(engine.device))
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"epoch {epoch + 1}: loss {engine.last_result.loss:.4f}, gradient norm {engine.get_global_grad_norm():.3f}")
    if args.output:
        engine.save_checkpoint(args.output, client_state={"epochs": args.epochs})
    engine.eval()
    with torch.no_grad():
        images, labels = held_out.tensors
        hits = (engine(images.to(engine.device, dtype)).argmax(1).cpu() == labels).float().mean().item()
    if engine.global_rank == 0:
        print(f"accuracy on held-out images: {100 * hits:.1f} %")


if __name__ == "__main__":
    main()
