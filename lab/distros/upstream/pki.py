"""Certificates and keys of one run's control plane: two authorities, a day long, never printed.

Common names and organizations are those that Kubernetes' own authorizers look for: ``system:node:NAME`` in
``system:nodes`` (plugin/pkg/auth/authorizer/node), ``system:kube-scheduler`` and ``system:kube-controller-manager``
(plugin/pkg/auth/authorizer/rbac/bootstrappolicy), and ``system:masters`` for the administrator. etcd has an authority
of its own: with the cluster's, any node's certificate would open the store.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lab.secrets import SECRETS

VALIDITY = timedelta(hours=24)
BACKDATED = timedelta(minutes=5)
"""A guest's clock may run behind the controller's; certificates are valid from a little earlier."""

API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, both PEM."""

    cert_pem: str
    key_pem: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountKeys:
    """The pair that signs and checks service-account tokens (ES256), both PEM."""

    public_pem: str
    private_pem: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A self-signed certificate authority (ECDSA P-256) whose key stays in memory."""

    cert: x509.Certificate = field(repr=False)
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def make(cls, common_name: str, now: datetime) -> Authority:
        """A new authority, valid from five minutes before ``now`` for a day after it (``now`` with a zone)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = _builder(name, name, key.public_key(), now)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(authority=True), critical=True)
        return cls(cert=builder.sign(key, hashes.SHA256()), key=key)

    @property
    def cert_pem(self) -> str:
        """The authority's certificate, PEM."""
        return _pem(self.cert)

    def issue(
        self,
        *,
        common_name: str,
        now: datetime,
        organizations: Sequence[str] = (),
        dns_names: Sequence[str] = (),
        ip_addresses: Sequence[str] = (),
        client: bool = False,
        server: bool = False,
    ) -> Pair:
        """A new key and a certificate for it. ValueError without a use, for a bad address or a time without zone."""
        if not client and not server:
            raise ValueError(f"certificate {common_name!r} needs a use: client, server or both")
        if server and not dns_names and not ip_addresses:
            raise ValueError(f"server certificate {common_name!r} needs a DNS name or an address")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, item) for item in organizations]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = _builder(x509.Name(subject), self.cert.subject, key.public_key(), now)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=False), critical=True)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
        if server:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer_key, critical=False)
        names: list[x509.GeneralName] = [x509.DNSName(item) for item in dns_names]
        names += [x509.IPAddress(ipaddress.ip_address(item)) for item in ip_addresses]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        cert = builder.sign(self.key, hashes.SHA256())
        return Pair(cert_pem=_pem(cert), key_pem=_private_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    if now.tzinfo is None:
        raise ValueError("the time of issue needs a time zone")
    moment = now.astimezone(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - BACKDATED)
        .not_valid_after(moment + VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(cert: x509.Certificate) -> str:
    return cert.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return content.decode("ascii")


def _service_account_keys() -> ServiceAccountKeys:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return ServiceAccountKeys(public_pem=public.decode("ascii"), private_pem=_private_pem(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlanePki:
    """Everything that one control plane and one node need.

    ``pairs`` maps a holder to its certificate and key. Signed by the cluster's authority (``ca_pem``): ``apiserver``
    (serving), ``apiserver-kubelet`` (client), ``admin``, ``controller-manager``, ``scheduler``, ``kubelet`` (client),
    ``kubelet-serving``, and ``reader`` (no rights of its own; see the RBAC that the distribution applies). Signed by
    etcd's (``etcd_ca_pem``): ``etcd`` (serving and peer), ``apiserver-etcd``.
    """

    ca_pem: str
    etcd_ca_pem: str
    pairs: Mapping[str, Pair]
    service_account: ServiceAccountKeys

    @classmethod
    def make(
        cls,
        *,
        now: datetime,
        api_names: Sequence[str] = (),
        api_ips: Sequence[str] = (),
        node_name: str = "node",
        node_ips: Sequence[str] = (),
    ) -> ControlPlanePki:
        """New authorities and certificates.

        ``api_names`` and ``api_ips`` are where clients reach the API server, beside API_NAMES and loopback;
        ``node_ips`` are the node's addresses. ``now`` carries a time zone. ValueError for a malformed address.
        """
        cluster = Authority.make("node-lab-ca", now)
        store = Authority.make("node-lab-etcd-ca", now)
        node_user = f"system:node:{node_name}"
        pairs = {
            "apiserver": cluster.issue(
                common_name="kube-apiserver",
                dns_names=_unique(API_NAMES, api_names),
                ip_addresses=_unique((LOOPBACK,), api_ips),
                now=now,
                server=True,
            ),
            "kubelet-serving": cluster.issue(
                common_name=node_user,
                organizations=("system:nodes",),
                dns_names=_unique((node_name,), ("localhost",)),
                ip_addresses=_unique((LOOPBACK,), node_ips),
                now=now,
                server=True,
            ),
            "etcd": store.issue(
                common_name="etcd",
                dns_names=("localhost",),
                ip_addresses=(LOOPBACK,),
                now=now,
                client=True,
                server=True,
            ),
            "apiserver-etcd": store.issue(common_name="kube-apiserver-etcd-client", now=now, client=True),
        }
        clients = {
            "apiserver-kubelet": ("kube-apiserver-kubelet-client", "system:masters"),
            "admin": ("node-lab-admin", "system:masters"),
            "controller-manager": ("system:kube-controller-manager",),
            "scheduler": ("system:kube-scheduler",),
            "kubelet": (node_user, "system:nodes"),
            "reader": ("lab-reader",),
        }
        for holder, (name, *groups) in clients.items():
            pairs[holder] = cluster.issue(common_name=name, organizations=groups, now=now, client=True)
        service_account = _service_account_keys()
        for secret in (*(pair.key_pem for pair in pairs.values()), service_account.private_pem):
            SECRETS.add(secret)
        return cls(
            ca_pem=cluster.cert_pem, etcd_ca_pem=store.cert_pem, pairs=pairs, service_account=service_account
        )

    def files(self) -> dict[str, str]:
        """File name to content: ``ca.crt``, ``etcd-ca.crt``, ``<holder>.crt`` and ``.key``, ``sa.pub``, ``sa.key``.

        The authorities' keys are in no file: nothing in a run issues a further certificate.
        """
        result = {"ca.crt": self.ca_pem, "etcd-ca.crt": self.etcd_ca_pem}
        for holder, pair in self.pairs.items():
            result |= {f"{holder}.crt": pair.cert_pem, f"{holder}.key": pair.key_pem}
        return result | {"sa.pub": self.service_account.public_pem, "sa.key": self.service_account.private_pem}

    def write(self, folder: Path) -> dict[str, Path]:
        """Write :meth:`files` as 0600 into ``folder``, made 0700 whatever the umask; file name to path.

        Files there are replaced, never written through a link that stands in their place.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        return {name: write_private(folder / name, content) for name, content in self.files().items()}

    def kubeconfig(self, server_url: str, holder: str) -> str:
        """The kubeconfig of one holder of a cluster client certificate; a secret. KeyError for an unknown one."""
        return kubeconfig(server_url, self.ca_pem, self.pairs[holder], holder)


def write_private(path: Path, content: str) -> Path:
    """Write one file as 0600, whole or not at all; its path."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(handle, 0o600)
            stream.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def kubeconfig(server_url: str, ca_pem: str, pair: Pair, name: str) -> str:
    """A kubeconfig (YAML) with one cluster, one user and one context; everything is embedded, so it is a secret."""

    def text(content: str) -> str:
        return base64.b64encode(content.encode()).decode("ascii")

    cluster = {"server": server_url, "certificate-authority-data": text(ca_pem)}
    user = {"client-certificate-data": text(pair.cert_pem), "client-key-data": text(pair.key_pem)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "node-lab", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": "node-lab", "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False)


def _unique(*groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))
