"""The shape of a script with Accelerate: a plain loop, prepared for several ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from accelerate import Accelerator
from accelerate.utils import set_seed
from points import BATCH_SIZE, arguments, make_model, make_samples
from torch.utils.data import DataLoader


def main() -> None:
    """One rank."""
    folder, epochs = arguments()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(make_samples(), batch_size=BATCH_SIZE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    saved = sorted(folder.glob("epoch-*"))  # a rename makes each whole
    if saved:
        accelerator.load_state(str(saved[-1]))
    begin = int(saved[-1].name.removeprefix("epoch-")) if saved else 0
    accelerator.print(f"begins at epoch {begin}")
    for epoch in range(begin + 1, epochs + 1):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.save_state(str(folder / "unfinished"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (folder / "unfinished").rename(folder / f"epoch-{epoch:04}")
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), folder / "final.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
