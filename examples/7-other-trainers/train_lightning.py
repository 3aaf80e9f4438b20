"""Lightning: a small classifier of points, which survives lost ranks."""

from __future__ import annotations

import argparse

import lightning as L  # noqa: N812 - the name that everybody uses
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from regroup_trainer.integrations.for_lightning import LightningRecovery, placement


class Classifier(L.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """The loss of a batch, printed now and then."""
        points, labels = batch
        loss = F.cross_entropy(self.net(points), labels)
        step = self.global_step + 1
        if step % 10 == 0 and self.trainer.is_global_zero:
            print(f"step {step}: loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


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

    L.seed_everything(0)
    model = Classifier()
    loader = DataLoader(make_points(options.samples), batch_size=8, shuffle=True)
    recovery = LightningRecovery(every_steps=20)  # instead of Lightning's own checkpoints
    trainer = L.Trainer(
        max_epochs=options.epochs,
        callbacks=[recovery],
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        **placement(),  # as many devices and nodes as the job has
    )
    trainer.fit(model, loader, ckpt_path=recovery.newest())
    if trainer.is_global_zero and options.result:
        torch.save(model.net.state_dict(), options.result)


if __name__ == "__main__":
    main()
