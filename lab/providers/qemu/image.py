"""The guest image: a Debian root file system with containerd and runc, built once into the user's cache.

Mirror and keyring come from this machine's own apt sources. The image is identified by the sha256 of its recipe; the
versions of the packages that went in stand in its manifest.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import filelock

from lab.model import NodeError, UsageError, sha256_json
from lab.providers.qemu import build_folder

log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 1500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what an image is. ``files`` maps a path to its text; ``setup`` are commands run inside.

    ``suite`` is a Debian release.
    """

    suite: str
    packages: tuple[str, ...]
    files: Mapping[str, str]
    setup: tuple[str, ...]
    disk_bytes: int

    def as_json(self) -> dict[str, object]:
        """Plain form for the manifest."""
        return {
            "suite": self.suite,
            "packages": self.packages,
            "files": dict(self.files),
            "setup": self.setup,
            "disk_bytes": self.disk_bytes,
        }

    @property
    def digest(self) -> str:
        """Identity of the image that this recipe makes."""
        return sha256_json(self.as_json())[:12]


_STATIC_KEYS_UNIT = """\
[Unit]
Description=Settle the kernel code that the first pod would have patched
Documentation=man:systemd.resource-control(5)
ConditionVirtualization=qemu
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /usr/local/sbin/lab-static-keys
[Install]
WantedBy=sysinit.target
"""
_STATIC_KEYS_SLICE = """\
[Unit]
Description=A quota and a CPU set that stay, without processes
[Slice]
CPUQuota=100%
AllowedCPUs=0
"""
_STATIC_KEYS_SCRIPT = """\
set -e
others() {
    for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
        if [ -e $cpu ]; then echo $1 > $cpu; fi
    done
}
back() { others 1; }
trap back EXIT
others 0
systemctl start statickeys.slice
"""
STATIC_KEYS = {
    "/etc/systemd/system/lab-static-keys.service": _STATIC_KEYS_UNIT,
    "/etc/systemd/system/statickeys.slice": _STATIC_KEYS_SLICE,
    "/usr/local/sbin/lab-static-keys": _STATIC_KEYS_SCRIPT,
}
"""Only under software emulation: the first CPU quota and the first CPU set of a boot make the kernel patch its own code
(static keys, in update_curr and get_page_from_freelist), and QEMU's virtual CPUs do not always see the end of that
together: one runs into the half-written instruction, and the kernel panics (Oops: int3). Here that is done at boot
while one CPU is online, and a slice keeps both in use, so that no pod does it while the others work.

With both CPUs busy, four guests of four panicked within 200 first quotas under QEMU 7.2, one after 10,240 under QEMU
11.1; with a quota that stays, 20,000 others were set and taken away without one.
"""

NODE = Recipe(
    # The release before this one has containerd 1.7, which kubelet 1.36 and later refuse.
    suite="forky",
    packages=(
        "busybox-static", "ca-certificates", "conntrack", "containerd", "curl", "dbus", "e2fsprogs", "ethtool",
        "initramfs-tools", "iproute2", "iptables", "kmod", "linux-image-cloud-amd64", "mount", "nftables",
        "openssh-server", "procps", "python3", "runc", "socat", "systemd-sysv", "util-linux", "zstd",
    ),
    files={
        "/etc/hostname": "node\n",
        "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node\n",
        "/etc/fstab": "/dev/vda / ext4 defaults,noatime 0 1\n",
        "/etc/systemd/network/10-lab.network": (
            "[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\nLinkLocalAddressing=no\n"
            "IPv6AcceptRA=no\n"
        ),
        "/etc/systemd/system/lab-seed.service": (
            "[Unit]\nDescription=Files that the lab gives this node (host key, authorized key, binaries)\n"
            "DefaultDependencies=no\nAfter=local-fs.target\nBefore=ssh.service sysinit.target\n"
            "ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key\n"
            "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
            "ExecStart=/bin/tar --extract --file=/dev/vdb --directory=/ --preserve-permissions --no-overwrite-dir\n"
            "[Install]\nRequiredBy=ssh.service\nWantedBy=sysinit.target\n"
        ),
        "/etc/ssh/sshd_config.d/lab.conf": (
            "HostKey /etc/ssh/ssh_host_ed25519_key\nPasswordAuthentication no\nUseDNS no\n"
            "PermitRootLogin prohibit-password\n"
        ),
        "/etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
        "/etc/initramfs-tools/conf.d/lab.conf": "MODULES=list\n",
        "/etc/sysctl.d/90-lab.conf": "net.ipv4.ip_forward=1\nvm.overcommit_memory=1\nkernel.panic_on_oops=1\n",
        **STATIC_KEYS,
    },
    setup=(
        "rm -f /etc/ssh/ssh_host_*",
        "systemctl enable systemd-networkd ssh lab-seed lab-static-keys",
        "systemctl disable containerd systemd-networkd-wait-online",
        "systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer "
        "systemd-tmpfiles-clean.timer",
        "update-initramfs -u -k all",
    ),
    disk_bytes=8 << 30,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What QEMU boots: kernel, initrd and a raw disk that is only ever read (each node has an overlay)."""

    folder: Path
    digest: str

    @property
    def kernel(self) -> Path:
        """Kernel, loaded by QEMU itself."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """Small initrd with the virtio modules only."""
        return self.folder / "initrd"

    @property
    def disk(self) -> Path:
        """Root file system."""
        return self.folder / "disk.raw"

    def packages(self) -> dict[str, str]:
        """Debian package name to version, as installed in the image."""
        return dict(json.loads((self.folder / "manifest.json").read_text())["packages"])


def missing_tools(*, for_build: bool) -> list[str]:
    """Debian packages that this machine lacks, for booting or also for building the image."""
    wanted = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
    if for_build:
        wanted |= {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"}
        if os.geteuid() != 0:
            wanted |= {"fakeroot": "fakeroot", "newuidmap": "uidmap"}
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return sorted(package for tool, package in wanted.items() if shutil.which(tool, path=path) is None)


def require_tools(*, for_build: bool) -> None:
    """UsageError with the command that installs what is missing."""
    missing = missing_tools(for_build=for_build)
    if missing:
        fix = f"apt-get install {' '.join(missing)}"
        raise UsageError(f"missing on this machine: {', '.join(missing)}; install with: {fix}")


def is_built(cache: Path, recipe: Recipe = NODE) -> bool:
    """Whether the recipe's image is in the cache."""
    return (cache / "images" / recipe.digest / "manifest.json").exists()


def ensure(cache: Path, progress: Callable[[str], None], recipe: Recipe = NODE) -> Image:
    """The image from the cache, built first when it is not there yet (about a minute)."""
    image = Image(folder=cache / "images" / recipe.digest, digest=recipe.digest)
    if is_built(cache, recipe):
        return image
    require_tools(for_build=True)
    image.folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{image.folder}{build_folder.LOCK_SUFFIX}", timeout=BUILD_TIMEOUT_S):
        if not is_built(cache, recipe):
            progress(f"building the guest image (Debian {recipe.suite}, once; about a minute)")
            # The tools work in a folder of their own, from which a relative path would lead elsewhere.
            _build(image.folder.absolute(), recipe)
    return image


def apt_mirror(texts: list[str]) -> str:
    """First Debian mirror in use in apt's source files, deb822 or one-line form (sources.list(5))."""
    for stanza in (part for text in texts for part in re.split(r"\n\s*\n", text)):
        if re.search(r"^Enabled:\s*(no|false|off|0)\s*$", stanza, flags=re.MULTILINE | re.IGNORECASE):
            continue
        lists = re.findall(
            r"^URIs:((?:.*\n?)(?:[ \t]+.*\n?)*)|^deb[ \t]+(?:\[[^\]]*\][ \t]+)?(\S+)", stanza, flags=re.MULTILINE
        )
        for uri in " ".join(word for pair in lists for word in pair).split():
            if re.search(r"/debian/?$", uri):
                return str(uri)
    raise UsageError(
        "no Debian mirror in this machine's apt sources, so the guest image cannot be built here; "
        "build it on a Debian machine and copy the cache folder"
    )


def _source_texts() -> list[str]:
    folder = Path("/etc/apt")
    files = [*sorted(folder.glob("sources.list.d/*.sources")), *sorted(folder.glob("sources.list.d/*.list"))]
    return [file.read_text() for file in [*files, folder / "sources.list"] if file.exists()]


def _build(target: Path, recipe: Recipe) -> None:
    mirror = apt_mirror(_source_texts())
    build_log = target.with_name(f"{target.name}.log")
    build_log.unlink(missing_ok=True)
    with build_folder.made(target) as work:
        archive = work / "root.tar"
        _run(_mmdebstrap(archive, mirror, recipe), work, build_log)
        packages = _unpack_boot(archive, work)
        _run(_make_disk(archive, work, recipe.disk_bytes), work, build_log)
        archive.unlink()
        manifest = {"recipe": recipe.as_json(), "packages": packages}
        (work / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        build_folder.finish(work, target)


def _run(argv: list[str], work: Path, build_log: Path) -> None:
    env = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    status = build_folder.run(argv, work, build_log, env=env, timeout_s=BUILD_TIMEOUT_S)
    if status is None:
        raise NodeError(f"building the guest image: {argv[0]} took over {BUILD_TIMEOUT_S:g} s; log: {build_log}")
    if status != 0:
        tail = "\n".join(build_log.read_text(errors="replace").splitlines()[-15:])
        raise NodeError(f"building the guest image: {argv[0]} failed ({status}); log: {build_log}\n{tail}")


def _mmdebstrap(archive: Path, mirror: str, recipe: Recipe) -> list[str]:
    hooks = []
    for path, text in recipe.files.items():
        # printf with %b keeps newlines in one argument; none of these texts holds a quote or a backslash.
        encoded = text.replace("\n", "\\n")
        hooks.append(f"--customize-hook=mkdir -p \"$(dirname \"$1{path}\")\"; printf '%b' '{encoded}' > \"$1{path}\"")
    hooks += [f"--customize-hook=chroot \"$1\" sh -c '{command}'" for command in recipe.setup]
    return [
        "mmdebstrap",
        "--variant=minbase",
        # A testing suite's Release file may be past its date on a mirror that is slow to follow.
        "--aptopt=Acquire::Check-Valid-Until \"false\"",
        "--aptopt=APT::Install-Recommends \"false\"",
        *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")),
        f"--include={','.join(recipe.packages)}",
        *hooks,
        recipe.suite,
        str(archive),
        f"deb {mirror} {recipe.suite} main",
    ]


def _unpack_boot(archive: Path, work: Path) -> dict[str, str]:
    """Kernel and initrd out of the archive; returns the installed packages."""
    packages: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            for prefix, target in (("boot/vmlinuz-", "vmlinuz"), ("boot/initrd.img-", "initrd")):
                if name.startswith(prefix) and member.isfile():
                    content = tar.extractfile(member)
                    if content is not None:
                        (work / target).write_bytes(content.read())
            if name == "var/lib/dpkg/status":
                content = tar.extractfile(member)
                if content is not None:
                    packages = parse_dpkg_status(content.read().decode())
    for target in ("vmlinuz", "initrd"):
        if not (work / target).exists():
            raise NodeError(f"the guest image holds no {target}; see {work.with_suffix('.log')}")
    return packages


def parse_dpkg_status(text: str) -> dict[str, str]:
    """Installed packages, name to version, out of dpkg's status file (one stanza a package, parted by empty lines)."""
    found = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.+?)\s*$", stanza, flags=re.MULTILINE))
        # A removed package whose configuration files stay keeps its stanza.
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            found[fields["Package"]] = fields["Version"]
    return found


def _make_disk(archive: Path, work: Path, size: int) -> list[str]:
    script = (
        'set -e; mkdir "$2/tree"; tar --extract --file="$1" --directory="$2/tree" --numeric-owner; '
        'truncate --size="$3" "$2/disk.raw"; mke2fs -q -F -t ext4 -d "$2/tree" "$2/disk.raw"; rm -rf "$2/tree"'
    )
    argv = ["sh", "-c", script, "sh", str(archive), str(work), str(size)]
    # fakeroot keeps the owners of the files for an ordinary user.
    return argv if os.geteuid() == 0 else ["fakeroot", *argv]
