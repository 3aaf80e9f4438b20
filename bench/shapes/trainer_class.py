"""The shape of a script with the Trainer of transformers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from points import BATCH_SIZE, arguments, make_model, make_samples
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class TrainerRegression(nn.Module):
    """A model as Trainer takes it: it computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Inputs (B, 10) and labels (B, 5) -> loss and outputs."""
        outputs = self.model(inputs)
        return {"loss": F.mse_loss(outputs, labels), "outputs": outputs}


class TrainerProgress(TrainerCallback):
    """Prints epochs."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say where training begins."""
        if state.is_world_process_zero:
            print(f"begins at epoch {round(state.epoch or 0)}")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say that an epoch is done."""
        if state.is_world_process_zero:
            print(f"epoch {round(state.epoch)}: loss {state.log_history[-1:]}")


def main() -> None:
    """One rank."""
    folder, epochs = arguments()
    model = TrainerRegression()
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder),
            use_cpu=True,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH_SIZE,
            save_strategy="epoch",
            save_total_limit=3,
            disable_tqdm=True,
            report_to=[],
        ),
        train_dataset=[{"inputs": inputs, "labels": labels} for inputs, labels in make_samples()],
        callbacks=[TrainerProgress()],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    if trainer.is_world_process_zero():
        torch.save(model.model.state_dict(), folder / "final.pt")


if __name__ == "__main__":
    main()
