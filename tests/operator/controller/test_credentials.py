"""How the operator checks the certificate of the API server."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from regroup_operator.controller.credentials import login

HOST = "127.0.0.1"


class BareAuthority:
    """An authority as older clusters have it: its certificates carry no key identifiers."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("cluster", self._key, x509.BasicConstraints(True, None))

    def serve(self, folder: Path) -> ssl.SSLContext:
        """The context of a server at HOST."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        file = folder / "server.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_bytes(self._sign("server", key, names) + secret)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(file)
        return context

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named("cluster"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python checks certificates as Python 3.13 and newer do."""
    create: Callable[..., ssl.SSLContext] = ssl.create_default_context

    def create_strict(*arguments: object, **options: object) -> ssl.SSLContext:
        context = create(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)


def login_with(authority: BareAuthority, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "ca.crt"
    file.write_bytes(authority.certificate)
    kubeconfig = folder / "kubeconfig"
    cluster = {"server": f"https://{HOST}", "certificate-authority": str(file)}
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "a",
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "clusters": [{"name": "a", "cluster": cluster}],
                "users": [{"name": "a", "user": {"token": "secret"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))


async def fetch(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Start a server, ask it once."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="ready")

    app = web.Application()
    app.router.add_get("/readyz", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, ssl_context=server)
    await site.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{HOST}:{_port(runner)}/readyz", ssl=client) as response,
        ):
            return await response.text()
    finally:
        await runner.cleanup()


def _port(runner: web.AppRunner) -> int:
    port: int = runner.addresses[0][1]
    return port


@pytest.mark.usefixtures("strict")
def test_certificates_without_key_identifiers_are_accepted_as_by_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = BareAuthority()
    login_with(authority, tmp_path, monkeypatch)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        asyncio.run(fetch(authority.serve(tmp_path), context))
    assert asyncio.run(fetch(authority.serve(tmp_path), login().as_ssl_context())) == "ready"


def test_a_server_of_another_authority_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login_with(BareAuthority(), tmp_path, monkeypatch)
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match="certificate"):
        asyncio.run(fetch(BareAuthority().serve(tmp_path), login().as_ssl_context()))
