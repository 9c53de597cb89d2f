"""What this machine is like, as lines that can be compared with those of a later run.

Reads only and writes no file; meant to arrive on standard input (`python3 -I -B -`), so that it is no trace itself. It
needs no module outside Debian's python3-minimal, which has no json. One JSON object a line, sorted within a section:
`kind`, `name` and `value` (a text, or a list of texts whose order counts). What is said here is raw; which of it
changes by itself on any machine is decided where it is compared (lab/fingerprint.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

VERSION = 1
ROOT = ""
"""In front of every path that is read; tests put a folder here."""

COMMAND_S = 60
PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Texts that stand in JSON as they are."""

DIGEST_BYTES = 1 << 20
"""Larger files are told apart by their size alone."""

CGROUP_DEPTH = 4
PROJECT = "/opt/lab/"

# Folder, levels below it, and what is said of the files: "content" (mode, owner, size, digest), "size" (without the
# digest) or "names" (mode and owner), where the machine's own services write all the time.
TREES = (
    ("/", 1, "names"),
    ("/etc", 5, "content"),
    ("/opt", 3, "size"),
    ("/usr/local", 3, "size"),
    ("/usr/libexec", 2, "names"),
    ("/var/lib", 1, "names"),
    ("/var/lib/calico", 2, "names"),
    ("/var/lib/cni", 2, "names"),
    ("/var/lib/containerd", 2, "names"),
    ("/var/lib/etcd", 2, "names"),
    ("/var/lib/kubelet", 2, "names"),
    ("/var/lib/rancher", 2, "names"),
    ("/var/log/containers", 1, "names"),
    ("/var/log/pods", 1, "names"),
    ("/run", 1, "names"),
    ("/run/containerd", 2, "names"),
    ("/run/netns", 1, "names"),
    ("/run/systemd/system", 2, "names"),
    ("/run/systemd/system.control", 2, "names"),
)

OURS = re.compile(r"(?:lab|kube|k3s|rke2|containerd|ctr|cni|runc|etcd)")
"""Names in the folders for temporary files that could come from the lab or from what it installs."""

SYSCTLS = (
    # Set by the kubelet (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go).
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    # Set by kube-proxy, by network plugins and by installers.
    "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding", "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter", "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait", "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
)  # fmt: skip

# As the kernel has them, cut to 15 characters.
PROGRAMS = frozenset({
    "calico-node", "containerd", "containerd-shim", "coredns", "etcd", "flanneld", "k0s", "k3s", "k3s-agent",
    "k3s-server", "kube-apiserver", "kube-controller", "kube-proxy", "kube-scheduler", "kubelet", "kubelite",
    "metrics-server", "pause", "rke2", "runc",
})  # fmt: skip

SAVE_TOOLS = tuple(
    f"{family}{variant}-save" for family in ("iptables", "ip6tables") for variant in ("", "-legacy", "-nft")
)


def quoted(text: str) -> str:
    """A JSON string in ASCII; what is no UTF-8 in a file name is shown as its escape."""
    if PLAIN.fullmatch(text):
        return f'"{text}"'
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    units = text.encode("utf-16-be")
    words = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    shown = "".join(chr(word) if 32 <= word < 127 and word not in (34, 92) else f"\\u{word:04x}" for word in words)
    return f'"{shown}"'


def emit(kind: str, name: str, value: str | Sequence[str] = "") -> None:
    """One line of output."""
    text = quoted(value) if isinstance(value, str) else "[" + ", ".join(quoted(line) for line in value) + "]"
    sys.stdout.write(f'{{"kind": {quoted(kind)}, "name": {quoted(name)}, "value": {text}}}\n')


def read(path: str) -> str | None:
    """Text of a file without its last newline, or None when there is none."""
    try:
        with open(ROOT + path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rstrip("\n")
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None


def run(argv: Sequence[str]) -> tuple[int, str, str] | None:
    """Exit status and both streams of a command, or None when there is no such program."""
    path = "/usr/sbin:/sbin:" + os.environ.get("PATH", "/usr/bin:/bin")
    environment = {**os.environ, "PATH": path, "LC_ALL": "C", "SYSTEMD_COLORS": "0"}
    for folder in path.split(":"):
        program = os.path.join(folder, argv[0])
        if os.access(program, os.X_OK):
            done = subprocess.run(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment,
                timeout=COMMAND_S,
                encoding="utf-8",
                errors="surrogateescape",
                check=False,
            )
            return done.returncode, done.stdout, done.stderr
    return None


def systemctl(verb: str, *flags: str) -> Iterator[list[str]]:
    """Words of each line of a listing; ends the program when systemd does not answer, since nothing can replace it."""
    done = run(("systemctl", verb, "--full", "--plain", "--no-legend", "--no-pager", *flags))
    if done is None or done[0] != 0:
        raise SystemExit(f"systemctl {verb}: {'not installed' if done is None else done[2].strip()}")
    # A unit that failed is marked in front, by some versions also with --plain.
    listed = [line.lstrip("● *").split() for line in done[1].splitlines()]
    yield from sorted(words for words in listed if len(words) > 1)


def units() -> None:
    """Unit files with their state, and the units in memory with theirs (load, active, sub)."""
    for words in systemctl("list-unit-files"):
        emit("unit-file", words[0], words[1])
    for words in systemctl("list-units", "--all"):
        emit("unit", words[0], " ".join(words[1:4]))


def mounts() -> None:
    """Mount points of PID 1's namespace, each with what is mounted there, the lowest first (proc_pid_mountinfo(5))."""
    found: dict[str, list[str]] = {}
    for line in (read("/proc/1/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words, (kind, source) = left.split(), right.split()[:2]
        shared = " shared" if any(word.startswith("shared:") for word in words[6:]) else ""
        access = words[5].split(",")[0]
        found.setdefault(unescaped(words[4]), []).append(f"{kind} {unescaped(source)} {access}{shared}")
    for target, layers in sorted(found.items()):
        emit("mount", target, layers)


def unescaped(text: str) -> str:
    """Octal escapes of the kernel's tables (``\\040`` is a space)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def swaps() -> None:
    """Swap areas: type and size."""
    for line in sorted((read("/proc/swaps") or "").splitlines()[1:]):
        name, kind, size = line.split()[:3]
        emit("swap", unescaped(name), f"{kind} {size} KiB")


def cgroups() -> None:
    """Folders of the cgroup tree; those of logins are left out here already, there may be thousands."""
    base = "/sys/fs/cgroup"

    def walk(folder: str, depth: int) -> None:
        for entry in children(base + folder):
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False) and path not in ("/user.slice", "/init.scope"):
                emit("cgroup", path)
                if depth > 1:
                    walk(path, depth - 1)

    walk("", CGROUP_DEPTH)


def interfaces() -> None:
    """Network interfaces: ARP type, device type as the driver names it, and whether hardware is behind it."""
    base = "/sys/class/net"
    for entry in children(base):
        if not os.path.isdir(entry.path):
            continue
        found = re.search(r"^DEVTYPE=(\S+)", read(f"{base}/{entry.name}/uevent") or "", re.MULTILINE)
        device = "with a device" if os.path.exists(f"{entry.path}/device") else "virtual"
        kind = read(f"{base}/{entry.name}/type") or "?"
        emit("interface", entry.name, f"type {kind}{' ' + found[1] if found else ''} {device}")


def firewall() -> None:
    """Every rule that the tools on this machine can show, as they print it."""
    for tool in (*SAVE_TOOLS, "nft"):
        done = run((tool, "--stateless", "list", "ruleset") if tool == "nft" else (tool,))
        if done is None:
            emit("firewall", tool, ["(not installed)"])
        elif done[0] != 0:
            emit("firewall", tool, [f"(exit {done[0]}) {' '.join(done[2].split())}"])
        else:
            emit("firewall", tool, done[1].splitlines())


def sysctls() -> None:
    """Kernel parameters that are there; ``net/bridge`` comes with its module."""
    bridge = [f"net/bridge/{entry.name}" for entry in children("/proc/sys/net/bridge")]
    for name in sorted((*SYSCTLS, *bridge)):
        value = read(f"/proc/sys/{name}")
        if value is not None:
            emit("sysctl", name.replace("/", "."), " ".join(value.split()))


def modules() -> None:
    """Names of the loaded modules."""
    for line in sorted((read("/proc/modules") or "").splitlines()):
        emit("module", line.split()[0])


def accounts() -> None:
    """Users and groups with their numbers."""
    for kind, path in (("user", "/etc/passwd"), ("group", "/etc/group")):
        for line in sorted((read(path) or "").splitlines()):
            words = line.split(":")
            if len(words) > 2 and not line.startswith(("#", "+", "-")):
                emit(kind, words[0], words[2])


def processes() -> None:
    """How many processes run that Kubernetes, its runtime or a pod could have left, by name."""
    found: dict[str, int] = {}
    for entry in children("/proc"):
        if not entry.name.isdigit():
            continue
        name = read(f"/proc/{entry.name}/comm")
        group = read(f"/proc/{entry.name}/cgroup")
        if name is None or group is None:
            continue
        try:
            program = os.readlink(f"{ROOT}/proc/{entry.name}/exe")
        except OSError:
            program = ""
        if name in PROGRAMS or "/kubepods" in group or program.startswith(PROJECT):
            found[name] = found.get(name, 0) + 1
    for name, count in sorted(found.items()):
        emit("process", name, str(count))


def children(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder by name; none when it is not there."""
    try:
        with os.scandir(ROOT + folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def described(entry: os.DirEntry[str], detail: str) -> str:
    """Mode and owner, then what ``detail`` asks for; a link with where it points."""
    found = entry.stat(follow_symlinks=False)
    text = f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}"
    if stat.S_ISLNK(found.st_mode):
        return f"{text} -> {os.readlink(entry.path)}"
    if not stat.S_ISREG(found.st_mode) or detail == "names":
        return text
    text = f"{text} {found.st_size} bytes"
    if detail == "content" and found.st_size <= DIGEST_BYTES:
        with open(entry.path, "rb") as file:
            text = f"{text} sha256:{hashlib.sha256(file.read()).hexdigest()[:16]}"
    return text


def files() -> None:
    """What lies in the folders where software is installed and keeps its state."""
    found: dict[str, str] = {}

    def walk(folder: str, depth: int, detail: str, wanted: Callable[[str, bool], bool]) -> None:
        for entry in children(folder):
            path = os.path.join(folder, entry.name)
            try:
                if not wanted(entry.name, entry.is_dir(follow_symlinks=False)):
                    continue
                found[path] = described(entry, detail)
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    walk(path, depth - 1, detail, lambda name, is_folder: True)
            except FileNotFoundError:
                continue
            except PermissionError:
                found[path] = "not readable"

    for folder, depth, detail in TREES:
        walk(folder, depth, detail, lambda name, is_folder: True)
    walk("/root", 2, "size", lambda name, is_folder: name.startswith("."))
    walk("/var/log", 1, "names", lambda name, is_folder: is_folder)
    for folder in ("/tmp", "/var/tmp"):
        walk(folder, 1, "names", lambda name, is_folder: OURS.match(name) is not None)
    for path, text in sorted(found.items()):
        emit("file", path, text)


def main() -> int:
    """All sections."""
    sys.stdout.write(f'{{"kind": "start", "program": "fingerprint", "version": {VERSION}}}\n')
    for section in (
        units, mounts, swaps, cgroups, interfaces, firewall, sysctls, modules, accounts, processes, files,
    ):  # fmt: skip
        section()
    sys.stdout.write('{"kind": "end"}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
