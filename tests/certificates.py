"""Certificates for tests, made anew for every run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
PEM = serialization.Encoding.PEM


class Certificates:
    """Files: `root`, `other_root`, and for each of `server`, `client`, `stranger`, `expired` a pair of files.

    `stranger` is of the other root. `server` is for 127.0.0.1 and localhost.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root, root = self._root("root")
        self.other_root, other = self._root("other_root")
        self.server = self._leaf("server", root)
        self.client = self._leaf("client", root)
        self.stranger = self._leaf("stranger", other)
        self.expired = self._leaf("expired", root, ends=-DAY)
        self.encrypted_key = folder / "encrypted.key"
        self.encrypted_key.write_bytes(_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))

    def flags(self, auth_clients: str = "no") -> tuple[str, ...]:
        """What a server is started with."""
        return (
            *("--tls-port", "0", "--tls-cert-file", str(self.server[0])),
            *("--tls-key-file", str(self.server[1]), "--tls-auth-clients", auth_clients),
            *("--tls-ca-cert-file", str(self.root)),
        )

    def _root(self, name: str) -> tuple[Path, tuple[x509.Name, ec.EllipticCurvePrivateKey]]:
        key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
        builder = _builder(subject, subject, key, 10 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        path = self._folder / f"{name}.pem"
        path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(PEM))
        return path, (subject, key)

    def _leaf(
        self, name: str, issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey], ends: timedelta = 10 * DAY
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        builder = _builder(_name(name), issuer[0], key, ends)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        files[0].write_bytes(builder.sign(issuer[1], hashes.SHA256()).public_bytes(PEM))
        files[1].write_bytes(_pem(key))
        return files


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 5 * DAY)
        .not_valid_after(now + ends)
    )


def _pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption)
