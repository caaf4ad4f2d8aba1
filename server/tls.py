"""TLS: the certificate that the server shows, and whether clients need one, as Redis' settings say it."""

from __future__ import annotations

import ssl
from pathlib import Path

from .config import Settings

HANDSHAKE_SECONDS = 10.0
"""A connection that is not made by then is closed; it is no client until then."""
SHUTDOWN_SECONDS = 2.0
"""How long a peer may take to answer the end of a connection."""
CHECKED = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "yes": ssl.CERT_REQUIRED}


class TlsError(Exception):
    """TLS cannot be had with these settings; the text names the setting and the file."""


def context_of(settings: Settings) -> ssl.SSLContext | None:
    """What connections are made with; None when there is no certificate and none is needed.

    Raises:
        TlsError: A setting is missing, or a file is not what it should be.
    """
    if settings.tls_cert_file is None:
        if settings.tls_port >= 0:
            raise TlsError(f"tls_port is {settings.tls_port}, but tls_cert_file is not set")
        return None
    if settings.tls_key_file is None:
        raise TlsError("tls_cert_file is set, but tls_key_file is not")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _show(context, settings.tls_cert_file, settings.tls_key_file)
    _check(context, settings)
    return context


def _show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for name, path in (("tls_cert_file", certificate), ("tls_key_file", key)):
        _read(name, path)
    try:
        # Without a password at hand OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        text = f"tls_cert_file {certificate} and tls_key_file {key} are not a certificate and its private key"
        raise TlsError(f"{text} without a password: {error}") from error


def _check(context: ssl.SSLContext, settings: Settings) -> None:
    """Say whose certificates count."""
    wanted, path = settings.tls_auth_clients, settings.tls_ca_cert_file
    context.verify_mode = CHECKED[wanted]
    if wanted == "no":
        return
    if path is None:
        raise TlsError(f"tls_auth_clients is {wanted}, but tls_ca_cert_file is not set")
    _read("tls_ca_cert_file", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(f"tls_ca_cert_file {path} holds no certificates: {error}") from error


def _read(name: str, path: Path) -> None:
    """See that a file can be read."""
    try:
        path.read_bytes()
    except OSError as error:
        raise TlsError(f"{name} {path}: {error.strerror}") from error
