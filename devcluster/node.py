"""One node: a containerd, a kubelet and a kube-proxy in their own network namespace and control
group.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster import cgroups, mounts, network
from devcluster.controlplane import DNS_DOMAIN, ControlPlane
from devcluster.packages import PLUGINS
from devcluster.pki import Identity
from devcluster.processes import Launch, Processes, read_proc
from devcluster.waiting import wait_until

PAUSE_IMAGE = "localhost/pause:1"
SHIM_SOCKETS = Path("/run/containerd/s")
CNI_RESULTS = Path("/var/lib/cni/results")
POD_LOG_LINKS = Path("/var/log/containers")

CONTAINERD = """\
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.native"]

[grpc]
  address = "{socket}"

[ttrpc]
  address = "{socket}.ttrpc"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
  # This machine may itself be a container. A container cannot give its children a better score
  # than its own.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{cni}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "{shim}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  Root = "{state}/runc"

[plugins.'io.containerd.internal.v1.opt']
  path = "{root}/opt"

[plugins.'io.containerd.nri.v1.nri']
  disable = true
"""


@dataclass(frozen=True)
class Node:
    """Node n`index` of a cluster."""

    plane: ControlPlane
    index: int

    @property
    def name(self) -> str:
        return f"n{self.index}"

    @property
    def address(self) -> str:
        return self.plane.block.node(self.index)

    @property
    def folder(self) -> Path:
        """Folder of all files of the node."""
        return self.plane.state / self.name

    @property
    def socket(self) -> Path:
        """The socket of the node's containerd."""
        return self.folder / "containerd.sock"

    @property
    def group(self) -> str:
        """The control group of all processes of the node."""
        return f"regroup/{self.plane.cluster}/{self.name}"

    @property
    def components(self) -> tuple[str, ...]:
        return (f"containerd-{self.name}", f"kubelet-{self.name}", f"kube-proxy-{self.name}")

    # --- programs

    def prepare(self) -> None:
        """Write certificates and configurations and create the control group."""
        for part in ("cni", "pods", "kubelet"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self.issue_certificate()
        (self.folder / "containerd.toml").write_text(
            CONTAINERD.format(
                root=self.folder / "containerd",
                state=self.folder / "state",
                socket=self.socket,
                pause=PAUSE_IMAGE,
                plugins=PLUGINS,
                cni=self.folder / "cni",
                shim=self.plane.bin / "containerd-shim-runc-v2",
            )
        )
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))
        (self.folder / "kube-proxy.yaml").write_text(yaml.safe_dump(self._kube_proxy()))
        cgroups.create(f"{self.group}/system")

    def issue_certificate(self) -> None:
        """Write a certificate for the kubelet, which it reads at its start."""
        pki = self.plane.endpoint.authority
        user = f"system:node:{self.name}"
        pki.issue(Identity(self.name, user, "system:nodes", hosts=(self.name, self.address)))
        kubeconfig = pki.kubeconfig(self.name, self.plane.endpoint.url, self.plane.context)
        (self.folder / "kubeconfig").write_text(kubeconfig)

    def start_runtime(self, processes: Processes) -> None:
        """Start containerd and wait until it answers."""
        path = f"{self.plane.bin}:{os.environ.get('PATH', '')}"
        containerd = (self.plane.bin / "containerd", "-c", self.folder / "containerd.toml")
        processes.start(self._launch("containerd", containerd, PATH=path))
        hint = f"See {processes.log(f'containerd-{self.name}')}."
        wait_until(self.socket.is_socket, 20, f"The start of containerd on {self.name}", hint)

    def start_agents(self, processes: Processes) -> None:
        """Start kubelet and kube-proxy. The API server must be ready."""
        kubelet = (
            self.plane.bin / "kubelet",
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet' / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )
        proxy = (self.plane.bin / "kube-proxy", f"--config={self.folder / 'kube-proxy.yaml'}")
        processes.start(self._launch("kubelet", kubelet))
        processes.start(self._launch("kube-proxy", proxy))

    def _launch(self, program: str, argv: tuple[str | Path, ...], **environment: str) -> Launch:
        namespace = network.node_namespace(self.plane.cluster, self.index)
        return Launch(
            f"{program}-{self.name}", argv, namespace, f"{self.group}/system", environment
        )

    def _pod_network(self) -> dict[str, object]:
        ranges = [[{"subnet": self.plane.block.node_pods(self.index)}]]
        return {
            "cniVersion": "1.0.0",
            "name": self._pod_network_name(),
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "mtu": 1500,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder / "addresses"),
                        "ranges": ranges,
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
            ],
        }

    def _pod_network_name(self) -> str:
        return f"regroup-{self.plane.cluster}-{self.name}"

    def _kubelet(self) -> dict[str, object]:
        """The kubelet's configuration. Lease and status timings stay the defaults, for honest
        measurements.
        """
        pki = self.plane.endpoint.authority
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki.crt(self.name)),
            "tlsPrivateKeyFile": str(pki.key(self.name)),
            "clusterDNS": [self.plane.block.dns_service],
            "clusterDomain": DNS_DOMAIN,
            "resolvConf": "/dev/null",
            "address": self.address,
            "podLogsDir": str(self.folder / "pods"),
            "volumePluginDir": str(self.folder / "kubelet" / "volume-plugins"),
            # The nodes share one disk, so none may evict pods because it is full.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": True,  # a pod may still have a limit of its own
            "failSwapOn": False,
        }

    def _kube_proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self.plane.state / "kube-proxy.kubeconfig")},
            "hostnameOverride": self.name,
            "clusterCIDR": str(self.plane.block.pods),
            # Machine-wide settings of the kernel stay as they are.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }

    # --- faults

    def is_running(self, processes: Processes) -> bool:
        return all(processes.pid(name) is not None for name in self.components)

    def pod_processes(self, uid: str) -> list[int]:
        """The processes of the pod with this UID, by their numbers on this machine."""
        return [pid for pid in cgroups.processes(self.group) if uid in read_proc(pid, "cgroup")]

    def is_plugged(self) -> bool:
        """Whether the node's network is connected."""
        exists = network.node_namespace(self.plane.cluster, self.index) in network.namespaces(
            self.plane.cluster
        )
        return exists and network.is_link_up(self.plane.cluster, self.index)

    def is_frozen(self) -> bool:
        """Whether all processes of the node are stopped."""
        return cgroups.is_frozen(self.group)

    def kill(self) -> None:
        """Cut the power. Peers get no message, and the node's memory is lost."""
        network.set_link(self.plane.cluster, self.index, up=False)
        cgroups.kill(self.group)

    def boot(self, processes: Processes) -> None:
        """Connect the network and start containerd. The disk is as the power cut left it."""
        if not self.is_running(processes):
            cgroups.kill(self.group)
            self.forget_memory()
            cgroups.create(f"{self.group}/system")
        network.set_link(self.plane.cluster, self.index, up=True)
        self.start_runtime(processes)

    def freeze(self) -> None:
        """Stop all processes of the node without ending them."""
        cgroups.freeze(self.group)

    def thaw(self) -> None:
        """Undo `freeze`."""
        cgroups.thaw(self.group)

    def partition(self) -> None:
        """Disconnect the network. The pods keep running."""
        network.set_link(self.plane.cluster, self.index, up=False)

    def heal(self) -> None:
        """Undo `partition`."""
        network.set_link(self.plane.cluster, self.index, up=True)

    def forget_memory(self) -> None:
        """Remove what a power cut would erase: mounts, sockets and the content of memory (/run)."""
        for bundle in self.folder.glob("state/io.containerd.runtime.v2.task/k8s.io/*"):
            self._remove_shim_socket(bundle)
        mounts.clear(self.folder)
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        for socket in self.folder.glob("containerd.sock*"):
            socket.unlink()

    def forget_machine_wide(self) -> None:
        """Remove the few files that the node's programs write outside the cluster's folder."""
        for result in CNI_RESULTS.glob(f"{self._pod_network_name()}-*"):
            result.unlink(missing_ok=True)
        for link in _links_into(POD_LOG_LINKS, self.folder):
            link.unlink(missing_ok=True)

    @staticmethod
    def _remove_shim_socket(bundle: Path) -> None:
        try:
            address = json.loads((bundle / "bootstrap.json").read_text())["address"]
        except (OSError, ValueError, KeyError):
            return
        socket = Path(str(address).removeprefix("unix://"))
        if socket.parent == SHIM_SOCKETS:
            socket.unlink(missing_ok=True)


def _links_into(folder: Path, target: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return []
    return [
        path
        for path in folder.iterdir()
        if path.is_symlink() and path.readlink().is_relative_to(target)
    ]
