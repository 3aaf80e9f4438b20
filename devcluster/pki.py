"""Certificates and kubeconfigs of a cluster, from an authority of its own."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=365)
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Identity:
    """The subject of a certificate."""

    name: str
    """Base name of the certificate's files."""
    common_name: str
    """The user for the API server."""
    organization: str = ""
    """The group for the API server."""
    hosts: Sequence[str] = ()
    """The addresses and DNS names of the server."""


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder: `ca.crt`, and `<name>.crt` and `<name>.key` for every
    identity.
    """

    folder: Path

    @property
    def certificate(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "ca.crt"

    def create(self) -> None:
        """Create the authority and the key that signs service account tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        key = _write_key(self.folder / "ca.key")
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "devcluster")])
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            # Python 3.13 and newer refuse an authority that does not say that it signs.
            .add_extension(_SIGNS, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.folder / "sa.key")

    def issue(self, identity: Identity) -> None:
        """Create a key and a certificate for servers and clients."""
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        issuer_key = serialization.load_pem_private_key(self.key("ca").read_bytes(), password=None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, identity.common_name)]
        if identity.organization:
            attributes.insert(
                0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.organization)
            )
        key = _write_key(self.key(identity.name))
        certificate = (
            _builder(x509.Name(attributes), issuer.subject, key.public_key())
            .add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in identity.hosts]),
                critical=False,
            )
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
                critical=False,
            )
            .sign(issuer_key, hashes.SHA256())
        )
        self.crt(identity.name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def crt(self, name: str) -> Path:
        """The certificate file of an identity."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """The key file of an identity."""
        return self.folder / f"{name}.key"

    def kubeconfig(self, name: str, server: str, context: str) -> str:
        """A self-contained kubeconfig, usable from any folder of the machine."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": context,
                "clusters": [
                    {
                        "name": context,
                        "cluster": {
                            "server": server,
                            "certificate-authority-data": _base64(self.certificate),
                        },
                    }
                ],
                "users": [
                    {
                        "name": name,
                        "user": {
                            "client-certificate-data": _base64(self.crt(name)),
                            "client-key-data": _base64(self.key(name)),
                        },
                    }
                ],
                "contexts": [{"name": context, "context": {"cluster": context, "user": name}}],
            }
        )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALID)
    )


def _write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    path.touch(mode=0o600)
    path.write_bytes(pem)
    return key
