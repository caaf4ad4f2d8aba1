"""TLS of a client: whose certificates it trusts, and the one it shows."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import Any

REFUSED = "; with TLS this is also how a server refuses the certificate of a client, or its lack"


def explained(text: str) -> str:
    """Why a connection failed before the first answer: a server that refuses a certificate just ends it."""
    return text if "certificate" in text else text + REFUSED


@dataclass(frozen=True)
class Tls:
    """How a connection is secured.

    Attributes:
        ca_file: Certificates (PEM) that the server's must lead to; None: those that the system trusts.
        cert_file: The client's own certificate (PEM), for a server that wants one.
        key_file: Its private key (PEM); None: it is in `cert_file`.
        verify: Whether the server's certificate and name are checked; if not, anybody can pose as the server.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    @cached_property
    def context(self) -> ssl.SSLContext:
        """What connections are made with.

        Raises:
            ValueError: A file is not there or not what it should be; the text names it.
        """
        files = ", ".join(filter(None, (self.ca_file, self.cert_file, self.key_file)))
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except OSError as error:
            raise ValueError(f"TLS with {files}: {error.strerror or error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def redis_options(self) -> dict[str, Any]:
        """The same, as redis-py wants it."""
        return {
            "ssl": True,
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.cert_file,
            "ssl_keyfile": self.key_file,
            "ssl_cert_reqs": "required" if self.verify else "none",
            "ssl_check_hostname": self.verify,
        }
