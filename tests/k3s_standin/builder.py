"""Makes release files of the stand-in: one executable per release, and the release's list of hashes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from lab.artifacts import Request, Sources, load_releases, resolve
from lab.distros.upstream.pki import ControlPlanePki
from tests.k3s_standin.program import layout
from tests.k3s_standin.program.components import API_URL
from tests.k3s_standin.program.staging import ADMIN_KUBECONFIG

PROGRAM = Path(__file__).resolve().parent / "program"
HEAD = b"#!/usr/bin/python3 -IS\n"
ENTRY = "import sys\n\nfrom program.main import main\n\nsys.exit(main(sys.argv[0], sys.argv[1:]))\n"
COMPONENTS = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")

SUMS = "sha256sum-amd64.txt"
PROGRAM_NAME = "k3s"

KEY_NAMES = {"ca": "server-ca", "admin": "client-admin"}
"""What k3s calls the pairs that the lab reads; the others are nobody's business and keep their names."""

HOLDERS = ("admin", "controller-manager", "scheduler", "kubelet")


def binaries(version: str, *, cache: Path, folder: Path, runtime: Path) -> dict[str, Path]:
    """Executables of a release, by the names under which they are started; a link target may come several times.

    ``version`` is Kubernetes' (``v1.36.3``), ``folder`` as ``--artifacts`` takes it, ``runtime`` holds RUNTIME.
    """
    releases = load_releases()
    sources = Sources(cache=cache, releases=releases, folder=folder, download=False)
    cluster = resolve(Request(kind="kubernetes", version=version), sources, lambda text: None)
    store = resolve(Request(kind="etcd", version=releases.etcd), sources, lambda text: None)
    return {
        **{name: cluster.components[name].resolve() for name in COMPONENTS},
        "etcd": store.components["etcd"].resolve(),
        **{name: runtime / name for name in RUNTIME},
    }


def payload(executables: Mapping[str, Path]) -> bytes:
    """A tar of the executables: each file once, its other names links. Packed lightly, for a slow machine to unpack."""
    out = io.BytesIO()
    first: dict[Path, str] = {}
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1, format=tarfile.USTAR_FORMAT) as tar:
        for name, source in executables.items():
            item = tarfile.TarInfo(name)
            item.mode = 0o755
            if source in first:
                item.type, item.linkname = tarfile.SYMTYPE, first[source]
                tar.addfile(item)
            else:
                first[source] = name
                item.size = source.stat().st_size
                with source.open("rb") as stream:
                    tar.addfile(item, stream)
    return out.getvalue()


def keys(now: datetime) -> dict[str, str]:
    """Certificates, keys and kubeconfigs of one cluster by file name, valid for a day: a node could not make them."""
    made = ControlPlanePki.make(now=now, api_ips=("10.43.0.1",), node_name=layout.NODE_NAME)
    found = {}
    for name, text in made.files().items():
        stem, _, suffix = name.rpartition(".")
        if "etcd" in stem:
            continue
        found[f"{KEY_NAMES.get(stem, stem)}.{suffix}"] = text
    found |= {f"{holder}.kubeconfig": made.kubeconfig(API_URL, holder) for holder in HOLDERS}
    assert ADMIN_KUBECONFIG in found
    return found


def program(tag: str, executables: Mapping[str, Path], *, behaviour: str = layout.WORKS) -> bytes:
    """The release's ``k3s``: a zip file that python3 runs, with the executables as one packed tar in it.

    A release that never comes as far as its components may be made without any.
    """
    packed = payload(executables)
    about = {"tag": tag, "behaviour": behaviour, "digest": hashlib.sha256(packed).hexdigest()}
    texts = {f"program/{path.name}": path.read_text() for path in sorted(PROGRAM.glob("*.py"))}
    texts |= {"__main__.py": ENTRY, layout.RELEASE: json.dumps(about)}
    texts |= {layout.KEYS + name: text for name, text in keys(datetime.now(UTC)).items()}
    out = io.BytesIO()
    out.write(HEAD)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
        archive.writestr(layout.PAYLOAD, packed)
    return out.getvalue()


def publish(mirror: Path, tag: str, content: bytes) -> Path:
    """Lay a release's files into ``mirror/<tag>``, with a list that fits; the program's path."""
    folder = mirror / tag
    folder.mkdir(parents=True)
    target = folder / PROGRAM_NAME
    target.write_bytes(content)
    target.chmod(0o755)
    digest = hashlib.sha256(content).hexdigest()
    others = f"{'0' * 64}  k3s-airgap-images-amd64.tar.zst\n"
    (folder / SUMS).write_text(f"{digest}  {PROGRAM_NAME}\n{others}")
    return target
