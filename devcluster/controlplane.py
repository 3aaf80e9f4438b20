"""The control plane: etcd, API server, controllers, scheduler and cluster DNS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from devcluster import network
from devcluster.kubeapi import Json, KubeApi
from devcluster.network import Block
from devcluster.pki import Authority, Identity
from devcluster.processes import Launch

PORT = 6443
DNS_DOMAIN = "cluster.local"
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "coredns",
    "provisioner",
)

ADMIN = Identity("admin", "admin", "system:masters")
CLIENTS = (
    ADMIN,
    # The controllers share one identity with all rights. An account for each controller would take
    # 4 seconds to create.
    Identity("controller-manager", "system:kube-controller-manager", "system:masters"),
    Identity("scheduler", "system:kube-scheduler"),
    Identity("kube-proxy", "system:kube-proxy"),
)

COREFILE = """\
{domain}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {address}
    errors
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} {context}
        pods verified
    }}
    cache 5
    loadbalance
}}
# There is no outside network. Answer at once, so that look-ups of foreign names do not wait for
# their time-out.
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


@dataclass(frozen=True)
class ApiEndpoint:
    """The address and the folders of an API server. This is enough to start one."""

    bin: Path
    state: Path
    address: str
    port: int
    etcd_port: int
    peer_port: int
    services: str

    @property
    def authority(self) -> Authority:
        return Authority(self.state / "pki")

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def api(self) -> KubeApi:
        """A client with administrator rights."""
        pki = self.authority
        return KubeApi(self.address, self.port, pki.certificate, pki.crt("admin"), pki.key("admin"))

    def etcd(self) -> tuple[str | Path, ...]:
        """Command line of etcd. It does not sync to disk: a test cluster may be lost with the
        machine.
        """
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        return (
            self.bin / "etcd",
            f"--data-dir={self.state / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        )

    def apiserver(self) -> tuple[str | Path, ...]:
        """Command line of the API server."""
        pki = self.authority
        return (
            self.bin / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--client-ca-file={pki.certificate}",
            f"--tls-cert-file={pki.crt('apiserver')}",
            f"--tls-private-key-file={pki.key('apiserver')}",
            f"--kubelet-client-certificate={pki.crt('admin')}",
            f"--kubelet-client-key={pki.key('admin')}",
            f"--service-account-key-file={pki.key('sa')}",
            f"--service-account-signing-key-file={pki.key('sa')}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DNS_DOMAIN}",
            f"--service-cluster-ip-range={self.services}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def controller_manager(self) -> tuple[str | Path, ...]:
        """Command line of the controllers, with their default timings."""
        pki = self.authority
        return (
            self.bin / "kube-controller-manager",
            f"--kubeconfig={self.state / 'controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={pki.key('sa')}",
            f"--root-ca-file={pki.certificate}",
            f"--cluster-signing-cert-file={pki.certificate}",
            f"--cluster-signing-key-file={pki.key('ca')}",
            "--leader-elect=false",
        )

    def issue_certificate(self, hosts: tuple[str, ...]) -> None:
        """Write a certificate for the API server."""
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self.authority.issue(
            Identity(
                "apiserver", "kube-apiserver", hosts=(self.address, "127.0.0.1", *hosts, *names)
            )
        )

    def write_identities(self, context: str, hosts: tuple[str, ...]) -> None:
        """Create the authority, the certificates and the kubeconfigs of the control plane."""
        pki = self.authority
        pki.create()
        self.issue_certificate(hosts)
        for identity in CLIENTS:
            pki.issue(identity)
            file = self.state / f"{identity.name}.kubeconfig"
            file.touch(mode=0o600)
            file.write_text(pki.kubeconfig(identity.name, self.url, context))


@dataclass(frozen=True)
class ControlPlane:
    """The control plane of a cluster. It runs in its own network namespace."""

    cluster: str
    block: Block
    bin: Path
    state: Path

    @property
    def endpoint(self) -> ApiEndpoint:
        services = str(self.block.services)
        return ApiEndpoint(
            self.bin, self.state, self.block.control_plane, PORT, 2379, 2380, services
        )

    def write_identities(self) -> None:
        """Create all certificates and kubeconfigs."""
        self.endpoint.write_identities(self.context, (self.block.kubernetes_service,))

    def issue_certificate(self) -> None:
        """Write a certificate for the API server, which it reads at its start."""
        self.endpoint.issue_certificate((self.block.kubernetes_service,))

    @property
    def context(self) -> str:
        """Name of the context in the kubeconfigs."""
        return f"devcluster-{self.cluster}"

    def storage(self) -> tuple[Launch, ...]:
        """How to start etcd and the API server, which all other components need."""
        return (
            self._launch("etcd", self.endpoint.etcd()),
            self._launch("kube-apiserver", self.endpoint.apiserver()),
        )

    def controllers(self, provisioner: tuple[str | Path, ...]) -> tuple[Launch, ...]:
        """How to start the other components once the API server is ready."""
        scheduler = f"--kubeconfig={self.state / 'scheduler.kubeconfig'}"
        corefile = self.state / "Corefile"
        kubeconfig = self.state / "admin.kubeconfig"
        corefile.write_text(
            COREFILE.format(
                address=self.block.control_plane,
                domain=DNS_DOMAIN,
                kubeconfig=kubeconfig,
                context=self.context,
            )
        )
        return (
            self._launch("kube-controller-manager", self.endpoint.controller_manager()),
            self._launch(
                "kube-scheduler", (self.bin / "kube-scheduler", scheduler, "--leader-elect=false")
            ),
            self._launch("coredns", (self.bin / "coredns", "-conf", corefile)),
            self._launch("provisioner", provisioner),
        )

    def dns_objects(self) -> dict[str, Json]:
        """The objects of the cluster DNS service, by collection. Its server is a process of the
        control plane.
        """
        labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
        ports: list[Json] = [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {"clusterIP": self.block.dns_service, "ports": ports},
        }
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-control-plane",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.block.control_plane], "conditions": {"ready": True}}],
            "ports": ports,
        }
        return {
            "/api/v1/namespaces/kube-system/services": service,
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": endpoints,
        }

    def _launch(self, name: str, argv: tuple[str | Path, ...]) -> Launch:
        namespace = network.control_plane_namespace(self.cluster)
        return Launch(name, argv, namespace, f"regroup/{self.cluster}/control-plane")
