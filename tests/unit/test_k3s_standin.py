"""The stand-in for k3s without a node: what it understands, what it refuses, its files and the server that has them."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lab.distros.k3s import settings as lab_settings
from lab.kubectl import Kubectl
from lab.model import Cell, Environment, Gate
from lab.store import Store
from tests.fakes import FakeHost, Reply
from tests.k3s_standin import builder
from tests.k3s_standin.mirror import Fault, Mirror
from tests.k3s_standin.program import components, footprint, layout, main, settings, staging, words
from tests.k3s_standin.program.layout import Refused
from tests.store_bench import begin, sealed

TAG = "v1.36.3+k3s1"
FIX = "PodLevelResourcesFixKubeletQOSClass"
KUBECTL = ("kubectl", "--cache-dir=/run/lab/kubectl", "--kubeconfig=/etc/rancher/k3s/k3s.yaml", "--request-timeout=20s")


def cell(*gates):
    return Cell(distro="k3s", version="v1.37.2", gates=tuple(Gate.parse(text) for text in gates))


# --- command lines


def kubectl(tmp_path):
    """The lab's own kubectl on k3s; every call is given to the stand-in's parser."""
    host = FakeHost("n-1")

    def understood(command):
        assert command.argv[0] == lab_settings.K3S
        call = words.parse("k3s", command.argv[1:])
        assert (call.kind, call.words) == ("kubectl", command.argv[2:])
        return Reply(stdout='{"items": []}')

    host.answer_when(lambda command: True, understood)
    return Kubectl(host=host, argv=lab_settings.KUBECTL, kubeconfig=lab_settings.KUBECONFIG)


def test_every_call_of_the_labs_kubectl_is_understood(tmp_path):
    client = kubectl(tmp_path)
    client.raw("/readyz")
    client.apply("text")
    client.create("text", check=False)
    client.create("text", dry_run=True)
    for kind in (("pods", "-A"), ("pods", "-n", "lab"), ("pod", "probe", "-n", "lab"), ("node", "node")):
        client.get_text(*kind)
    client.get_text("events", "-A", "--field-selector", "type=Warning")
    client.get_text("resourcequota", "no-besteffort", "-n", "lab-quota")
    client.call("get", "serviceaccount", "default", "-n", "lab-quota", check=False)
    client.call(
        "delete", "pod/a", "pod/b-1", "-n", "lab", "--ignore-not-found", "--grace-period=1", "--wait=false",
        timeout_s=2.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        ("get", "node", "node", "-o", "name"),
        ("get", "node", "node", "-o", "jsonpath={range .status.conditions[*]}{.type}={.status} {end}{.spec.taints[*]}"),
        ("get", "namespace", "lab", "-o", "name", "--ignore-not-found"),
        ("create", "namespace", "lab"),
        ("get", "serviceaccount", "default", "--namespace", "kube-system", "-o", "name"),
        ("get", "--raw", "/metrics"),
    ],
)
def test_what_the_nodes_programs_ask_is_understood(call):
    assert words.parse("k3s", (*KUBECTL, *call)).kind == "kubectl"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("k3s", ()),
        ("k3s", ("--version", "-v")),
        ("k3s", ("server", "--disable=traefik")),
        ("k3s", ("agent",)),
        ("k3s", ("crictl", "ps")),
        ("k3s", ("kubectl", "get", "--raw", "/readyz")),
        ("k3s", (*KUBECTL, "get", "--raw", "/healthz")),
        ("k3s", (*KUBECTL, "get", "nodes", "-o", "json")),
        ("k3s", (*KUBECTL, "get", "pods", "-A")),
        ("k3s", (*KUBECTL, "get", "pods", "-A", "-o", "json", "--watch")),
        ("k3s", (*KUBECTL, "get\n--raw\n/readyz")),
        ("k3s", (*KUBECTL, "apply", "-f", "-")),
        ("k3s", (*KUBECTL, "delete", "-n", "lab", "--ignore-not-found", "--grace-period=1", "--wait=false")),
        ("k3s", ("kubectl", "--kubeconfig=/root/.kube/config", "get", "--raw", "/readyz")),
        ("ctr", ("images", "list")),
        ("ctr", ("--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import", "-")),
        ("crictl", ("ps",)),
    ],
)
def test_other_words_are_refused(name, call):
    with pytest.raises(Refused, match=r"knows only|not among those|called k3s or ctr"):
        words.parse(name, call)


def test_as_ctr_it_imports_an_image():
    call = ("--address", "/run/k3s/containerd/containerd.sock", "-n", "k8s.io", "images", "import", "-")
    assert words.parse("ctr", call) == words.Call("ctr", call)


def test_only_the_version_is_answered_in_other_words():
    assert words.parse("k3s", (*KUBECTL, "get", "--raw", "/version")).asks_version
    assert not words.parse("k3s", (*KUBECTL, "get", "--raw", "/metrics")).asks_version


def test_the_version_gets_the_releases_suffix_and_keeps_its_number():
    answer = json.loads(main.renamed('{"gitVersion": "v1.36.3", "minor": "36"}', TAG))
    assert answer == {"gitVersion": TAG, "minor": "36"}
    with pytest.raises(Refused, match=r"says v1\.36\.2, the release is v1\.36\.3"):
        main.renamed('{"gitVersion": "v1.36.2"}', TAG)


# --- config.yaml and the drop-in


@pytest.mark.parametrize("gates", [(), (f"{FIX}=false",), (f"{FIX}=false", "PodLevelResources=true")])
def test_what_the_lab_writes_is_read_as_yaml_would(gates):
    told = cell(*gates)
    for text in (lab_settings.config(told, own_images=False), lab_settings.drop_in(told)):
        assert settings.parse_yaml(text, "x") == yaml.safe_load(text)
    found = settings.config(lab_settings.config(told, own_images=False))
    assert found.gates == {gate.name: gate.enabled for gate in told.gates}
    assert (found.pause_image, found.verbosity) == ("lab.local/busybox:1", 3)
    settings.check_drop_in(lab_settings.drop_in(told), "50-lab.conf", found.gates)


def test_the_releases_own_images_are_not_offered():
    with pytest.raises(Refused, match="pause-image is missing"):
        settings.config(lab_settings.config(cell(), own_images=True))


@given(st.from_regex(r"[A-Za-z0-9/'][A-Za-z0-9./:=,_+' -]{0,12}", fullmatch=True))
def test_a_scalar_that_is_read_is_read_as_yaml_would(text):
    try:
        found = settings.parse_yaml(f"key: {text}", "x")
    except Refused:
        return
    assert found == yaml.safe_load(f"key: {text}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("v: 3", "v: 3\ndebug: true", "the key debug is not among those"),
        ("v: 3", "v: '3'", "v: '3' is not what"),
        ("v: 3\n", "", "v is missing"),
        ("v: 3", "v: 3\nv: 3", "has a key twice"),
        ("v: 3", "v: [3]", "of a form"),
        ("v: 3", "v: 3 # loud", "of a form"),
        ("v: 3", "v:", "v has no value"),
        ("v: 3", "v: 3\n- stray", "of a form"),
        ("v: 3", "v: 3\n  nested: 1", "of a form"),
        ("v: 3", "v: !!int 3", "of a form"),
        ("v: 3", "v: 0.5", "of a form"),
        ("v: 3", "v: &a 3", "of a form"),
        ("- coredns\n", "", "disable"),
        ("- coredns\n", "- coredns\n  deep: 1\n", "mixes a mapping"),
        ("bind-address: 127.0.0.1", "bind-address: 0.0.0.0", "bind-address"),
        ("'0600'", "'0644'", "write-kubeconfig-mode"),
        ("node-name: node", "node-name: other", "node-name"),
    ],
)
def test_another_config_is_refused(old, new, said):
    text = lab_settings.config(cell(), own_images=False)
    assert old in text
    with pytest.raises(Refused, match=said):
        settings.config(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind:", "maxPods: 9\nkind:", "the key maxPods is not among those"),
        ("2Gi", "10%", "of a form"),
        ("  memory.available: 2Gi", "  memory.available: 2Gi\n  nodefs.available: 1Gi", "evictionHard"),
        ("30s", "5m", "evictionPressureTransitionPeriod"),
        ("address: 127.0.0.1", "address: 0.0.0.0", "address"),
        ("kind:", "featureGates:\n  A: true\nkind:", "featureGates are not those"),
    ],
)
def test_another_drop_in_is_refused(old, new, said):
    text = lab_settings.drop_in(cell())
    assert old in text
    with pytest.raises(Refused, match=said):
        settings.check_drop_in(text.replace(old, new), "50-lab.conf", {})


def test_one_process_has_one_set_of_gates():
    with pytest.raises(Refused, match="not those of kube-apiserver-arg"):
        settings.check_drop_in(lab_settings.drop_in(cell()), "50-lab.conf", {FIX: False})


def test_kubelet_and_runtime_are_told_what_k3s_tells_them():
    defaults = yaml.safe_load(components.kubelet_defaults(is_unit=True))
    assert defaults["evictionHard"] == {"imagefs.available": "5%", "nodefs.available": "5%"}
    assert (defaults["cgroupDriver"], defaults["address"]) == ("systemd", "0.0.0.0")
    assert yaml.safe_load(components.kubelet_defaults(is_unit=False))["cgroupDriver"] == "cgroupfs"
    config = settings.Config(pause_image="lab.local/busybox:1", verbosity=3, gates={FIX: False})
    runtime = tomllib.loads(components.containerd_config(config, is_unit=True))
    plugins = runtime["plugins"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == "lab.local/busybox:1"
    runc = plugins["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]["runc"]
    assert runc["options"] == {"BinaryName": f"{layout.BIN}/runc", "SystemdCgroup": True}
    for argv in (components.api_server(config), components.scheduler(config), components.manager(config)):
        assert f"--feature-gates={FIX}=false" in argv
        assert "--v=3" in argv


def test_places_are_those_that_the_lab_looks_at():
    assert (layout.DATA, layout.CONFIG, layout.KUBECONFIG) == (
        lab_settings.DATA, lab_settings.CONFIG, lab_settings.KUBECONFIG,
    )  # fmt: skip
    assert layout.CONTAINERD_LOG == lab_settings.CONTAINERD_LOG
    assert f"{layout.KUBELET_CONFIGS}/50-lab.conf" == lab_settings.DROP_IN
    assert components.API_URL == "https://127.0.0.1:6443"


def test_a_tool_that_fails_is_told_with_what_it_said():
    with pytest.raises(OSError, match="ended with 3: no such link"):
        footprint.call(["sh", "-c", "echo no such link >&2; exit 3"])


# --- release files


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release whose executables are small scripts, published; its file."""
    folder = tmp_path_factory.mktemp("release")
    tool = folder / "hyperkube"
    tool.write_text('#!/bin/sh\necho "$0 $*"\n')
    tool.chmod(0o755)
    made = builder.program(TAG, {"kubectl": tool, "kubelet": tool, "runc": Path("/bin/sh").resolve()})
    return builder.publish(folder / "mirror", TAG, made)


def test_the_file_says_its_version(release):
    done = subprocess.run([release, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[0] == f"k3s version {TAG} (stand-in)"
    assert done.stderr == ""


def test_the_file_refuses_what_it_does_not_know(release, tmp_path):
    done = subprocess.run([release, "agent"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (main.REFUSED, "")
    assert done.stderr.startswith("k3s (stand-in): k3s agent: it knows only --version")
    (tmp_path / "ctr").symlink_to(release)
    done = subprocess.run([tmp_path / "ctr", "version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == main.REFUSED
    assert "as ctr it knows only" in done.stderr


def test_executables_are_unpacked_once(release, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "STAGED", str(tmp_path / "data"))
    found = staging.Release.read(str(release))
    found.stage()
    binaries = tmp_path / "data/current/bin"
    assert sorted(path.name for path in binaries.iterdir()) == ["kubectl", "kubelet", "runc"]
    # A multi-call program comes once: the component that it plays is the name that it is called by.
    assert os.readlink(binaries / "kubelet") == "kubectl"
    assert (tmp_path / "data" / found.digest).is_dir()
    said = subprocess.run([binaries / "kubelet", "--x"], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip().endswith("kubelet --x")
    before = (binaries / "kubectl").stat()
    found.stage()
    assert (binaries / "kubectl").stat().st_mtime_ns == before.st_mtime_ns


def test_a_payload_that_is_damaged_is_told(release, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "STAGED", str(tmp_path / "data"))
    damaged = tmp_path / "k3s"
    with zipfile.ZipFile(release) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content[: len(content) // 2] if name == layout.PAYLOAD else content)
    with pytest.raises(OSError, match="tar ended with"):
        staging.Release.read(str(damaged)).stage()
    assert not (tmp_path / "data/current").exists()


def test_keys_are_laid_for_root_alone_and_belong_together(release, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "TLS", str(tmp_path / "tls"))
    monkeypatch.setattr(staging, "CREDENTIALS", str(tmp_path / "cred"))
    monkeypatch.setattr(staging, "KUBECONFIG", str(tmp_path / "k3s.yaml"))
    found = staging.Release.read(str(release))
    found.lay_keys()
    assert not (tmp_path / "k3s.yaml").exists()
    found.lay_kubeconfig()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    tls = tmp_path / "tls"
    context = ssl.create_default_context(cafile=str(tls / "server-ca.crt"))
    context.load_cert_chain(tls / "client-admin.crt", tls / "client-admin.key")
    # Every file that a command line names is there.
    config = settings.Config(pause_image="x:1", verbosity=3)
    for argv in (components.api_server(config), components.manager(config)):
        for word in argv:
            if layout.TLS in word:
                assert (tls / word.rpartition("/")[2]).is_file(), word
    assert {path.name for path in (tmp_path / "cred").iterdir()} == {
        "controller-manager.kubeconfig", "scheduler.kubeconfig", "kubelet.kubeconfig",
    }  # fmt: skip
    admin = yaml.safe_load((tmp_path / "k3s.yaml").read_text())
    assert admin["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"


def test_keys_are_valid_now(release):
    with zipfile.ZipFile(release) as archive:
        text = archive.read(f"{layout.KEYS}apiserver.crt").decode()
    from cryptography import x509

    cert = x509.load_pem_x509_certificate(text.encode())
    assert cert.not_valid_before_utc < datetime.now(UTC) < cert.not_valid_after_utc
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "127.0.0.1" in [str(address) for address in names.get_values_for_type(x509.IPAddress)]


def test_a_behaviour_is_chosen_when_the_release_is_made(tmp_path):
    path = tmp_path / "k3s"
    path.write_bytes(builder.program(TAG, {}, behaviour=layout.ENDS))
    path.chmod(0o755)
    done = subprocess.run([path, "server"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert f'level=info msg="Starting k3s {TAG} (stand-in)"' in first
    assert "level=fatal" in last
    path.write_bytes(builder.program(TAG, {}, behaviour="odd"))
    with pytest.raises(Refused, match="the behaviour odd is not known"):
        staging.Release.read(str(path))


def test_one_that_is_never_ready_ends_when_it_is_told_to(tmp_path):
    path = tmp_path / "k3s"
    path.write_bytes(builder.program(TAG, {}, behaviour=layout.NEVER_READY))
    path.chmod(0o755)
    child = subprocess.Popen([path, "server"], stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    with child.stderr as said:
        assert "Starting k3s" in said.readline()
        assert "level=warning" in said.readline()
        child.terminate()
        assert "Shutdown request received" in said.read()
    assert child.wait(timeout=60) == 0


def test_a_payload_holds_each_file_once(tmp_path):
    tool = tmp_path / "tool"
    tool.write_bytes(b"x" * 1000)
    with tarfile.open(fileobj=io.BytesIO(builder.payload({"a": tool, "b": tool}))) as tar:
        members = {item.name: (item.isfile(), item.linkname, item.mode) for item in tar}
    assert members == {"a": (True, "", 0o755), "b": (False, "a", 0o755)}


def test_the_program_needs_no_module_outside_the_standard_library():
    script = (
        "import sys, pkgutil; sys.path.insert(0, sys.argv[1]); import program\n"
        "for item in pkgutil.iter_modules(program.__path__): __import__(f'program.{item.name}')\n"
        "print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-IS", "-c", script, str(builder.PROGRAM.parent)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) <= {"program", "__main__"}


# --- the mirror


def get(mirror, path):
    """Status and body of one answer; the path goes out as it is."""
    connection = http.client.HTTPConnection(mirror.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_release_is_served_with_a_list_that_fits(release):
    with Mirror(release.parent.parent) as mirror:
        content = get(mirror, f"{TAG}/k3s")
        listed = get(mirror, f"{TAG}/{builder.SUMS}")
    assert content == (200, release.read_bytes())
    assert listed[1].decode().splitlines()[0] == f"{hashlib.sha256(content[1]).hexdigest()}  k3s"
    assert mirror.asked == [f"/{TAG}/k3s", f"/{TAG}/{builder.SUMS}"]


def test_faults_are_switched_on_for_one_file(release):
    with Mirror(release.parent.parent) as mirror:
        mirror.faults = {f"{TAG}/k3s": Fault.ALTERED, f"{TAG}/{builder.SUMS}": Fault.UNLISTED}
        _, content = get(mirror, f"{TAG}/k3s")
        assert len(content) == release.stat().st_size
        assert content != release.read_bytes()
        assert b"  k3s\n" not in get(mirror, f"{TAG}/{builder.SUMS}")[1]
        mirror.faults = {f"{TAG}/k3s": Fault.TRUNCATED, "v1.36.9+k3s1/k3s": Fault.GONE}
        with pytest.raises(http.client.IncompleteRead):
            get(mirror, f"{TAG}/k3s")
        assert get(mirror, "v1.36.9+k3s1/k3s")[0] == 404
        assert get(mirror, f"{TAG}/{builder.SUMS}")[0] == 200


@pytest.mark.parametrize("path", ["v1.36.3/k3s", f"{TAG}/k3s-arm64", f"{TAG}/../secret", "", f"{TAG}/k3s?x=1"])
def test_a_path_of_no_release_fails_the_test(release, path):
    mirror = Mirror(release.parent.parent)

    def ask():
        with mirror:
            assert get(mirror, path)[0] == 404

    with pytest.raises(AssertionError, match="asked for what no release has"):
        ask()
    assert mirror.unexpected == [f"/{path}"]


# --- what was measured on it


def test_nothing_that_was_measured_on_it_counts(tmp_path):
    where = Environment(must_agree={"provider": "ssh"}, shown={"k3s": f"{TAG} ({layout.MARK})"})
    attempt = sealed(Store(tmp_path), environment=where)
    assert not attempt.countable
    assert attempt.uncountable_reasons == ("it ran on a stand-in for k3s",)


def test_an_attempt_that_goes_on_there_does_not_count_either(tmp_path):
    writer = begin(Store(tmp_path))
    writer.amend(extra={}, environment=Environment(shown={"k3s": f"{TAG} (stand-in)"}))
    attempt = writer.seal(observation=None, verdict={}, finished="f")
    assert (attempt.countable, attempt.uncountable_reasons) == (False, ("it ran on a stand-in for k3s",))


def test_a_real_k3s_counts(tmp_path):
    where = Environment(shown={"k3s": "v1.36.3+k3s1 (0123abcd)"})
    assert sealed(Store(tmp_path), environment=where).countable
