"""Digits, classified by a small network: the same program, elastic and fault-tolerant.

regroup run job.yaml
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from digits import Digits
from torch import nn

from regroup_trainer import Session

BATCH, EPOCHS = 64, 20


def main() -> None:
    """Train, and log the loss every 100 steps."""
    session = Session(seed=0)
    dataset = Digits(train=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = session.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session.attach(optimizer)
    for inputs, targets in session.batches(
        dataset, steps=EPOCHS * len(dataset) // BATCH, global_batch_size=BATCH
    ):
        loss = F.cross_entropy(model(inputs), targets)
        session.backward(loss)
        session.step()
        if session.steps % 100 == 0:
            session.log(loss=session.loss)


if __name__ == "__main__":
    main()
