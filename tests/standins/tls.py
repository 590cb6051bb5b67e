"""A self-signed certificate for a stand-in on the loopback: clients are told of it by a file."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

_DAYS = 2


def make_certificate(folder: Path) -> Path:
    """A new certificate for `localhost` and 127.0.0.1, with its key, as one PEM file in `folder`."""
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
    """For a server that has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def trusting(certificate: Path | None) -> dict[str, str]:
    """What makes clients trust it, whatever they are written with: OpenSSL and rustls, requests, botocore."""
    names = () if certificate is None else ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
    return dict.fromkeys(names, str(certificate))
