"""Certificates: what verifies, what does not, who may read the files, and what a log could show."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_address

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from lab.distros.upstream.pki import (
    API_NAMES,
    Authority,
    ControlPlanePki,
    Pair,
    kubeconfig,
    write_private,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def pki():
    return ControlPlanePki.make(
        now=NOW,
        api_names=("controller", "localhost"),
        api_ips=("10.0.2.2", "10.96.0.1", "fd00::2"),
        node_name="worker",
        node_ips=("10.0.2.15",),
    )


def load(pair_or_pem):
    pem = pair_or_pem.cert_pem if isinstance(pair_or_pem, Pair) else pair_or_pem
    return x509.load_pem_x509_certificate(pem.encode())


def verify_server(pem, ca_pem, name, at=NOW):
    try:
        subject = x509.IPAddress(ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    builder = PolicyBuilder().store(Store([load(ca_pem)])).time(at.replace(tzinfo=None))
    return builder.build_server_verifier(subject).verify(load(pem), [])


@pytest.mark.parametrize("name", [*API_NAMES, "controller", "127.0.0.1", "10.0.2.2", "10.96.0.1", "fd00::2"])
def test_api_server_certificate_verifies_under_each_name(pki, name):
    chain = verify_server(pki.pairs["apiserver"], pki.ca_pem, name)
    assert chain == [load(pki.pairs["apiserver"]), load(pki.ca_pem)]


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        ("kubelet-serving", "worker"),
        ("kubelet-serving", "10.0.2.15"),
        ("kubelet-serving", "localhost"),
    ],
)
def test_kubelet_serving_certificate_verifies(pki, holder, name):
    assert len(verify_server(pki.pairs[holder], pki.ca_pem, name)) == 2


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_etcd_certificate_verifies_with_its_own_authority_only(pki, name):
    assert len(verify_server(pki.pairs["etcd"], pki.etcd_ca_pem, name)) == 2
    with pytest.raises(VerificationError):
        verify_server(pki.pairs["etcd"], pki.ca_pem, name)


@pytest.mark.parametrize("name", ["example.org", "10.0.2.3", "worker"])
def test_a_name_outside_the_certificate_is_refused(pki, name):
    with pytest.raises(VerificationError):
        verify_server(pki.pairs["apiserver"], pki.ca_pem, name)


def test_a_client_certificate_is_no_server(pki):
    other = Authority.make("other", NOW)
    client = other.issue(common_name="c", now=NOW, dns_names=("localhost",), client=True)
    with pytest.raises(VerificationError):
        verify_server(client, other.cert_pem, "localhost")


@pytest.mark.parametrize(
    ("offset", "valid"),
    [
        (-timedelta(minutes=5), True),
        (-timedelta(minutes=5, seconds=1), False),
        (timedelta(hours=24), True),
        (timedelta(hours=24, seconds=1), False),
    ],
)
def test_validity_is_a_day_and_five_minutes_before(pki, offset, valid):
    if valid:
        verify_server(pki.pairs["apiserver"], pki.ca_pem, "localhost", NOW + offset)
    else:
        with pytest.raises(VerificationError):
            verify_server(pki.pairs["apiserver"], pki.ca_pem, "localhost", NOW + offset)


def test_a_time_in_another_zone_is_the_same_moment():
    there = Authority.make("a", NOW.astimezone(timezone(timedelta(hours=9))))
    assert there.cert.not_valid_after_utc == NOW + timedelta(hours=24)
    with pytest.raises(ValueError, match="time zone"):
        Authority.make("a", NOW.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("holder", "name", "groups"),
    [
        ("kubelet", "system:node:worker", ["system:nodes"]),
        ("admin", "node-lab-admin", ["system:masters"]),
        ("scheduler", "system:kube-scheduler", []),
        ("reader", "lab-reader", []),
        ("controller-manager", "system:kube-controller-manager", []),
        ("apiserver-kubelet", "kube-apiserver-kubelet-client", ["system:masters"]),
    ],
)
def test_client_subjects_and_signature(pki, holder, name, groups):
    cert = load(pki.pairs[holder])
    assert [a.value for a in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [name]
    assert [a.value for a in cert.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == groups
    usage = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    cert.verify_directly_issued_by(load(pki.ca_pem))
    with pytest.raises(ValueError, match=r"[Ii]ssuer"):
        cert.verify_directly_issued_by(load(pki.etcd_ca_pem))


def test_etcd_client_is_of_the_other_authority_and_the_peer_has_both_uses(pki):
    load(pki.pairs["apiserver-etcd"]).verify_directly_issued_by(load(pki.etcd_ca_pem))
    usage = load(pki.pairs["etcd"]).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


def test_keys_belong_to_their_certificates_and_are_all_different(pki):
    seen = set()
    for pair in pki.pairs.values():
        key = serialization.load_pem_private_key(pair.key_pem.encode(), None)
        assert key.public_key() == load(pair).public_key()
        assert isinstance(key.curve, ec.SECP256R1)
        seen.add(key.private_numbers().private_value)
    assert len(seen) == len(pki.pairs)
    serials = {load(pair).serial_number for pair in pki.pairs.values()}
    assert len(serials) == len(pki.pairs)


def test_service_account_keys_sign_and_verify(pki):
    private = serialization.load_pem_private_key(pki.service_account.private_pem.encode(), None)
    public = serialization.load_pem_public_key(pki.service_account.public_pem.encode())
    signature = private.sign(b"token", ec.ECDSA(hashes.SHA256()))
    public.verify(signature, b"token", ec.ECDSA(hashes.SHA256()))


def test_an_issued_certificate_cannot_issue(pki):
    cert = load(pki.pairs["admin"])
    assert cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert cert.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False
    authority = load(pki.ca_pem)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=True, path_length=0
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a use"),
        ({"server": True}, "needs a DNS name"),
        ({"server": True, "ip_addresses": ("10.0.2",)}, "10.0.2"),
    ],
)
def test_issue_refuses_what_could_not_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        Authority.make("a", NOW).issue(common_name="x", now=NOW, **arguments)


def secret_parts(pki):
    """The two lines of each key that hold its private number; the rest of the file repeats the public key."""
    pems = [pair.key_pem for pair in pki.pairs.values()] + [pki.service_account.private_pem]
    return [line for pem in pems for line in pem.splitlines()[1:3]]


def test_repr_shows_no_key(pki):
    authority = Authority.make("a", NOW)
    shown = repr(pki) + str(pki) + repr(pki.service_account) + repr(list(pki.pairs.values())) + repr(authority)
    assert "PRIVATE" not in shown
    assert [line for line in secret_parts(pki) if line in shown] == []
    assert format(authority.key.private_numbers().private_value, "d") not in shown


def test_write_modes_and_content(pki, tmp_path):
    folder = tmp_path / "deep" / "pki"
    folder.mkdir(parents=True, mode=0o755)
    (folder / "admin.key").write_text("old")
    (folder / "admin.key").chmod(0o644)
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    (folder / "sa.key").symlink_to(outside)
    before = os.umask(0)
    try:
        paths = pki.write(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {p.name for p in folder.iterdir()} == set(paths) == set(pki.files())
    for name, path in paths.items():
        assert not path.is_symlink()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() == pki.files()[name]
    assert outside.read_text() == "untouched"
    assert "ca.key" not in paths
    assert "etcd-ca.key" not in paths


def test_write_private_leaves_nothing_behind_when_it_fails(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_private(tmp_path / "taken", "secret")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_kubeconfig_is_complete_and_embedded(pki):
    text = kubeconfig("https://10.0.2.2:6443", pki.ca_pem, pki.pairs["kubelet"], "kubelet")
    assert text == pki.kubeconfig("https://10.0.2.2:6443", "kubelet")
    data = yaml.safe_load(text)
    assert (data["apiVersion"], data["kind"]) == ("v1", "Config")
    (context,) = [item for item in data["contexts"] if item["name"] == data["current-context"]]
    (cluster,) = [item for item in data["clusters"] if item["name"] == context["context"]["cluster"]]
    (user,) = [item for item in data["users"] if item["name"] == context["context"]["user"]]
    assert cluster["cluster"]["server"] == "https://10.0.2.2:6443"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode() == pki.ca_pem
    assert base64.b64decode(user["user"]["client-certificate-data"]).decode() == pki.pairs["kubelet"].cert_pem
    assert base64.b64decode(user["user"]["client-key-data"]).decode() == pki.pairs["kubelet"].key_pem


def test_kubeconfig_of_an_unknown_holder_is_an_error(pki):
    with pytest.raises(KeyError, match="nobody"):
        pki.kubeconfig("https://localhost:1", "nobody")


class _Server(threading.Thread):
    """One mutual TLS handshake; ``peer`` is the client's subject, ``error`` what went wrong."""

    def __init__(self, context):
        super().__init__(daemon=True)
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.peer = self.error = None

    def run(self):
        connection, _ = self.listener.accept()
        connection.settimeout(20)
        try:
            with self.context.wrap_socket(connection, server_side=True) as tls:
                self.peer = tls.getpeercert()["subject"]
                tls.sendall(b"ok")
        except OSError as error:
            self.error = error
            connection.close()


def handshake(tmp_path, live, server_holder, ca_file, client_holder):
    files = live.write(tmp_path / "pki")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files[ca_file])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files[f"{server_holder}.crt"], files[f"{server_holder}.key"])
    server = _Server(context)
    server.start()
    client = ssl.create_default_context(cafile=files[ca_file])
    if client_holder is not None:
        client.load_cert_chain(files[f"{client_holder}.crt"], files[f"{client_holder}.key"])
    try:
        with (
            socket.create_connection(server.listener.getsockname(), timeout=20) as plain,
            client.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        ):
            answer = tls.recv(2)
    except OSError:
        answer = b""
    server.join(20)
    server.listener.close()
    return answer, server


@pytest.fixture(scope="module")
def live():
    return ControlPlanePki.make(now=datetime.now(UTC), node_name="worker")


def test_real_handshake_names_the_client(tmp_path, live):
    answer, server = handshake(tmp_path, live, "apiserver", "ca.crt", "kubelet")
    assert server.error is None
    assert answer == b"ok"
    assert (("organizationName", "system:nodes"),) in server.peer
    assert (("commonName", "system:node:worker"),) in server.peer


@pytest.mark.parametrize(
    ("server_holder", "ca_file", "client_holder"),
    [
        ("apiserver", "ca.crt", None),
        ("apiserver", "ca.crt", "apiserver-etcd"),
        ("apiserver", "ca.crt", "kubelet-serving"),
        ("etcd", "etcd-ca.crt", "kubelet"),
        ("etcd", "etcd-ca.crt", "admin"),
    ],
)
def test_real_handshake_refuses_other_clients(tmp_path, live, server_holder, ca_file, client_holder):
    answer, server = handshake(tmp_path, live, server_holder, ca_file, client_holder)
    assert answer == b""
    assert isinstance(server.error, ssl.SSLError)
    assert server.peer is None


def test_etcd_takes_the_api_server(tmp_path, live):
    answer, server = handshake(tmp_path, live, "etcd", "etcd-ca.crt", "apiserver-etcd")
    assert (answer, server.error) == (b"ok", None)
