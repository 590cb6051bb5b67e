"""Self-signed certificate for a stand-in on loopback, which clients load from a file."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

_DAYS = 2


def make_certificate(folder: Path) -> Path:
    """Create a certificate for `localhost` and 127.0.0.1; return the path of a PEM file in `folder` that also has its
    key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=_DAYS))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    path = folder / "localhost.pem"
    path.write_bytes(private + made.public_bytes(s.Encoding.PEM))
    return path


def server_context(certificate: Path) -> ssl.SSLContext:
    """Return the TLS context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def trusting(certificate: Path | None) -> dict[str, str]:
    """Return the variables with which OpenSSL, rustls, requests and botocore trust the certificate."""
    names = () if certificate is None else ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
    return dict.fromkeys(names, str(certificate))
