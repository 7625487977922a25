"""How the server proves who it is, and whether clients must."""

from __future__ import annotations

import ssl
from pathlib import Path


def server_context(certificate: Path, key: Path, *, minimum: str, client_ca: Path | None) -> ssl.SSLContext:
    """`minimum`: lowest version, `1.2` or `1.3`; `client_ca`: whose certificates clients must have.

    Raises:
        OSError: a file does not hold what it should, or the key is encrypted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if minimum == "1.2" else ssl.TLSVersion.TLSv1_3
    # With no password given the terminal would be asked for an encrypted key's.
    context.load_cert_chain(certificate, key, password="")
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.load_verify_locations(cafile=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
