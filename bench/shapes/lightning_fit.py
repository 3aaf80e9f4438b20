"""The shape of a script with Lightning: the library has the loop."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from points import BATCH_SIZE, arguments, make_model, make_samples
from torch import Tensor
from torch.utils.data import DataLoader


class LightningRegression(LightningModule):
    """What is trained, and how."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        return F.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class LightningProgress(Callback):
    """Prints epochs."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where training begins."""
        if trainer.is_global_zero:
            print(f"begins at epoch {trainer.current_epoch}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that an epoch is done."""
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch + 1}: loss {trainer.callback_metrics}")


def main() -> None:
    """One rank."""
    folder, epochs = arguments()
    seed_everything(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=epochs,
        callbacks=[ModelCheckpoint(folder, save_last=True, every_n_epochs=1), LightningProgress()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = LightningRegression()
    loader = DataLoader(make_samples(), batch_size=BATCH_SIZE, shuffle=True)
    trainer.fit(module, loader, ckpt_path="last")
    if trainer.is_global_zero:
        torch.save(module.model.state_dict(), folder / "final.pt")


if __name__ == "__main__":
    main()
