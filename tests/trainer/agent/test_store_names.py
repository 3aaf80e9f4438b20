"""The store of a generation asks no name server for the names of those who connect: it would do so
in the one thread that serves all ranks. In a network namespace whose name server does not answer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

CLIENTS = 3
PROGRAM = """
import os, re, socket, subprocess, sys

from torch.distributed import TCPStore

from regroup_trainer.agent import template

servers = re.findall(r"^nameserver\\s+([0-9.]+)\\s*$", open("/etc/resolv.conf").read(), re.M)
servers = servers or ["127.0.0.1"]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listening = []
for server in servers:
    if server != "127.0.0.1":
        subprocess.run(["ip", "address", "add", f"{server}/32", "dev", "lo"], check=True)
    listening.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    listening[-1].bind((server, 53))
    listening[-1].setblocking(False)
reading, writing = os.pipe()
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
child = os.fork()
if child == 0:
    template._serve_store("127.0.0.1", writing)
os.environ["RES_OPTIONS"] = "attempts:0"  # the clients ask nobody either
port = int(os.read(reading, 20))
clients = [TCPStore("127.0.0.1", port, is_master=False) for _ in range(int(sys.argv[1]))]
for client in clients:
    client.add("came", 1)
questions = 0
for each in listening:
    try:
        while each.recv(512):
            questions += 1
    except BlockingIOError:
        pass
print(clients[0].get("came").decode(), questions)
os.kill(child, 9)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_the_store_of_a_generation_asks_for_no_names() -> None:
    command = ("unshare", "--net", sys.executable, "-c", PROGRAM, str(CLIENTS))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == [str(CLIENTS), "0"]
