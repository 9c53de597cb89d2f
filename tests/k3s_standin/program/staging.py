"""The program's own file: what it says of itself, and its executables, unpacked once at first use."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .layout import BEHAVIOURS, CREDENTIALS, KEYS, KUBECONFIG, PAYLOAD, RELEASE, STAGED, TLS, Refused

CHUNK_BYTES = 1 << 20
ADMIN_KUBECONFIG = "admin.kubeconfig"


@dataclass(frozen=True)
class Release:
    """``path``: the file itself. ``tag``: ``v1.36.3+k3s1``. ``digest`` names the folder of its executables."""

    path: str
    tag: str
    behaviour: str
    digest: str

    @classmethod
    def read(cls, path: str) -> Release:
        """What the file at ``path`` says of itself; Refused when it does something that nobody knows."""
        with zipfile.ZipFile(path) as archive:
            found = json.loads(archive.read(RELEASE))
        release = cls(path=path, **found)
        if release.behaviour not in BEHAVIOURS:
            raise Refused(f"{path}: the behaviour {release.behaviour} is not known")
        return release

    def stage(self) -> None:
        """Have the executables in ``data/<digest>/bin`` and the link ``data/current``; safe for two at once."""
        target = Path(STAGED, self.digest)
        Path(STAGED).mkdir(parents=True, exist_ok=True)
        with Path(STAGED, ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                part = Path(STAGED, f"{self.digest}.part")
                shutil.rmtree(part, ignore_errors=True)
                (part / "bin").mkdir(parents=True)
                self._unpack(part / "bin")
                part.rename(target)
            if not Path(STAGED, "current").exists():
                os.symlink(target, Path(STAGED, "current"))

    def _unpack(self, folder: Path) -> None:
        """By tar(1): python3 alone would take long on an emulated processor."""
        with zipfile.ZipFile(self.path) as archive, archive.open(PAYLOAD) as packed:
            tar = subprocess.Popen(["tar", "-xzf", "-", "-C", str(folder)], stdin=subprocess.PIPE)
            assert tar.stdin is not None
            with tar.stdin:
                shutil.copyfileobj(packed, tar.stdin, CHUNK_BYTES)
            if tar.wait() != 0:
                raise OSError(f"unpacking {self.path} into {folder}: tar ended with {tar.returncode}")

    def lay_keys(self) -> None:
        """Certificates, keys and kubeconfigs of the components, for root alone; not yet the administrator's file."""
        for folder in (TLS, CREDENTIALS):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        with zipfile.ZipFile(self.path) as archive:
            for name in archive.namelist():
                if name.startswith(KEYS) and name != KEYS + ADMIN_KUBECONFIG:
                    folder = CREDENTIALS if name.endswith(".kubeconfig") else TLS
                    write(Path(folder, name.removeprefix(KEYS)), archive.read(name).decode(), 0o600)

    def lay_kubeconfig(self) -> None:
        """The administrator's kubeconfig: that it is there says that the API server is ready."""
        with zipfile.ZipFile(self.path) as archive:
            write(Path(KUBECONFIG), archive.read(KEYS + ADMIN_KUBECONFIG).decode(), 0o600)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """A file with its folders, whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.chmod(mode)
    part.replace(path)
