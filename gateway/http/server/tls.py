"""TLS of the server, and of clients where certificates are required."""

from __future__ import annotations

import ssl
from pathlib import Path


def server_context(certificate: Path, key: Path, *, minimum: str, client_ca: Path | None) -> ssl.SSLContext:
    """Return the server's TLS context.

    Args:
        minimum: lowest version, `1.2` or `1.3`.
        client_ca: authorities whose certificates clients must present.

    Raises:
        OSError: a file has the wrong content, or the key is encrypted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if minimum == "1.2" else ssl.TLSVersion.TLSv1_3
    # Without a password argument OpenSSL would ask at the terminal for an encrypted key's.
    context.load_cert_chain(certificate, key, password="")
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.load_verify_locations(cafile=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
