"""A rank is not an identity: kill one of two machines, replace it, and the other one gets another
rank.

    python ranks.py

Each "machine" is an agent of stock torchrun with one worker. It has an address of its own, by which
torchrun puts the machines in order. The store by which they meet outlives both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

SECONDS = 60
"""Longer than any restart takes."""
ADDRESSES = {"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}
"""Of the machines, all of them this one. Of two with one address, the lower process id is first."""


def worker(folder: Path) -> None:
    """Write this machine's rank to a file, then all-reduce until the file `stop` exists."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    name, restart = os.environ["MACHINE"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    line = (
        f"machine {name}: RANK {dist.get_rank()} of {dist.get_world_size()} (process {os.getpid()})"
    )
    (folder / f"{name}-{restart}").write_text(line)
    going = torch.ones(1)
    while going:
        time.sleep(0.05)
        going.fill_(not (folder / "stop").exists())
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
    dist.barrier()  # who leaves first closes connections that others may still need
    dist.destroy_process_group()


def machine(name: str, port: int, folder: Path) -> subprocess.Popen[bytes]:
    """An agent that waits for a second one, and starts its worker anew when a peer is lost."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--max-restarts=5",
    ]
    command += [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=ranks",
        f"--local-addr={ADDRESSES[name]}",
    ]
    command += [
        "--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    ]
    environment = {
        **os.environ,
        "MACHINE": name,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [*command, __file__, str(folder)],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def print_new_lines(folder: Path, machines: str) -> None:
    """Wait until each of the machines has a new line, print them, and forget them."""
    deadline = time.monotonic() + SECONDS
    while True:
        lines = {name: sorted(folder.glob(f"{name}-*")) for name in machines}
        texts = [files[-1].read_text() for files in lines.values() if files]
        if len(texts) == len(machines) and all(texts):
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"machines {machines} did not meet within {SECONDS} s")
        time.sleep(0.1)
    print(*texts, sep="\n", flush=True)
    for file in folder.glob("?-*"):
        file.unlink()


def main() -> None:
    """Start two machines, kill one and start a third."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with TemporaryDirectory() as name:
        folder = Path(name)
        agents = {letter: machine(letter, store.port, folder) for letter in "ab"}
        try:
            print_new_lines(folder, "ab")
            os.killpg(agents["a"].pid, signal.SIGKILL)
            agents["a"].wait()
            print("machine a is lost, machine c takes its place", flush=True)
            agents["c"] = machine("c", store.port, folder)
            print_new_lines(folder, "bc")
            (folder / "stop").touch()
            for letter in "bc":
                agents[letter].wait(SECONDS)
        finally:
            for agent in agents.values():
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait()


if __name__ == "__main__":
    worker(Path(sys.argv[1])) if "MACHINE" in os.environ else main()
