"""What the user types into the notebook."""

from __future__ import annotations

TRAIN = '''
from regroup import TrainingClient


def train(lr: float, steps: int) -> None:
    """Fit a sine. It is slow on purpose, so that you can watch it."""
    import time
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset
    from regroup_trainer import Session

    session = Session(seed=0)
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    model = session.prepare(net)
    session.attach(torch.optim.Adam(model.parameters(), lr=lr))
    x = torch.linspace(-3, 3, 3072)[:, None]
    data = TensorDataset(x, torch.sin(x))
    for inputs, targets in session.batches(data, steps=steps, global_batch_size=96):
        session.backward(nn.functional.mse_loss(model(inputs), targets))
        session.step()
        time.sleep(0.2)
'''
SUBMIT = """
client = TrainingClient(backend="kubernetes")
job = client.train(
    train,
    func_args={"lr": 0.003, "steps": 10_000},
    name="sine",
    workers=(2, 4),
    claim="shared",
)
print(job.code)
"""
STARTED = """
status = job.wait(timeout=600, phase="Running")
"""
PROGRESS = """
try:
    job.wait(timeout=30)
except TimeoutError as message:
    print(message)
"""
METRICS = """
points = job.metrics()
print(
    f"{len(points)} points: step {points[0].step} to {points[-1].step},",
    f"loss {points[0].loss:.4f} to {points[-1].loss:.4f}",
)
"""
WEIGHTS = """
import torch
from torch import nn

weights = job.load_state_dict()
print({name: tuple(weight.shape) for name, weight in weights.items()})
net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
net.load_state_dict(weights)
x = torch.linspace(-3, 3, 100)[:, None]
error = nn.functional.mse_loss(net(x), torch.sin(x)).item()
print(f"error {error:.6f}")
"""
EXPORTED = """
from safetensors.torch import load_file

exported = load_file("model.safetensors")
print({name: tuple(weight.shape) for name, weight in exported.items()})
"""
TRAINS_ON = """
import time

first = job.metrics()[-1].step
while job.metrics()[-1].step == first:
    time.sleep(1)
print(f"step {first}, then step {job.metrics()[-1].step}")
"""
CONTINUED = """
from regroup import TrainingClient

job = TrainingClient().job("sine")
"""
"""In a new notebook, for a walk that goes on later."""
