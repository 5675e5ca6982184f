"""Make a certificate authority and the server certificates that it signs: X.509 v3, ECDSA P-256."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gdpfed.errors import FailedError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
REMEDY = "see 'Rotating keys' in docs/operations.md"
# Clocks of different machines differ; a certificate is valid from a little before it is made.
_CLOCK_SKEW = timedelta(hours=1)


class CredentialsError(FailedError):
    """Raised if keys or certificates cannot be made; the message names the wrong value and the remedy."""


@dataclass(frozen=True)
class Authority:
    """A certificate authority; with its key one can pose as any server of the federation."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str) -> "Authority":
        """Create a self-signed authority that may issue server certificates only, no other authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def from_pem(cls, key: bytes, certificate: bytes) -> "Authority":
        """Read an authority's key and certificate, as :attr:`key_pem` and :attr:`certificate_pem` write them.

        Raises CredentialsError: the two do not belong together, or are not PEM.
        """
        try:
            private = load_pem_private_key(key, password=None)
            public = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:
            raise CredentialsError(f"the authority's files are not PEM ({error}): {REMEDY}") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != public.public_key():
            raise CredentialsError(f"the key of the authority does not belong to its certificate: {REMEDY}")
        return cls(private, public)

    @property
    def key_pem(self) -> bytes:
        """The authority's private key, PKCS#8 in PEM, not encrypted."""
        return private_pem(self.key)

    @property
    def certificate_pem(self) -> bytes:
        """The authority's certificate, which clients trust when they check the servers' certificates."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(self, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Issue the certificate and private key (PEM) of a server with these names and addresses.

        Raises CredentialsError: no host.
        """
        if not hosts:
            raise CredentialsError(
                "a server certificate needs at least one host name or address: give --superlink-host"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        builder = _builder(hosts[0], str(issuer), key.public_key(), SERVER_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(digital_signature=True), critical=True)
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(purposes, critical=False)
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(authority_key, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(Encoding.PEM), private_pem(key)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PKCS#8 in PEM, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    subject: str, issuer: str, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
