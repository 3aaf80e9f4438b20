"""Accelerate: a small classifier of points, which survives lost ranks."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from regroup_trainer.integrations.for_accelerate import saved_batches


def make_points(count: int) -> TensorDataset:
    """Points in 8 dimensions, labelled by whether the first half outweighs the second."""
    points = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    labels = (points[:, :4].sum(1) > points[:, 4:].sum(1)).long()
    return TensorDataset(points, labels)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--result", help="a file for the final parameters")
    options = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = DataLoader(make_points(options.samples), batch_size=8, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)

    batches = saved_batches(accelerator, loader, options.epochs, every_steps=20)
    for step, (points, labels) in enumerate(batches, start=1):
        loss = F.cross_entropy(net(points), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step} of this process: loss {loss.item():.4f}")

    if accelerator.is_main_process and options.result:
        torch.save(accelerator.unwrap_model(net).state_dict(), options.result)
    accelerator.end_training()


if __name__ == "__main__":
    main()
