"""A custom loop with a Session, as a user writes it."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from points import BATCH, PACE_SECONDS, STEPS, make_model, make_samples

from regroup_trainer import Session


def main() -> None:
    """Train."""
    session = Session(seed=0)
    model = session.prepare(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    session.attach(optimizer)
    for inputs, targets in session.batches(make_samples(), steps=STEPS, global_batch_size=BATCH):
        session.backward(F.mse_loss(model(inputs), targets))
        session.step()
        time.sleep(PACE_SECONDS)


if __name__ == "__main__":
    main()
