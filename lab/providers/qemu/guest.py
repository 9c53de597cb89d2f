"""One QEMU process: its disk overlay, its seed of files, its command line, and whether KVM is really usable here."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lab import processes
from lab.host import Deadline
from lab.model import NodeError
from lab.providers.qemu.image import Image

log = logging.getLogger(__name__)

CONTROLLER_ADDRESS = "10.0.2.2"
"""Where QEMU's user network shows the controller's loopback to the guest."""

NODE_ADDRESS = "10.0.2.15"
OVERLAY_S = 60
KVM_PROBE_S = 20.0
KILLED_S = 10
LAST_LINES = 15
PANIC = re.compile(r"Kernel panic(?: - not syncing: )?(.*)")
PANIC_LINES = 120
"""An oops with its registers and its call trace, before the panic that it ends in."""

OOPS = re.compile(r"Oops: .*|BUG: .*|kernel BUG at .*")

CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"
    # Of a string that was cut off, and whatever else moves the cursor.
    r"|\x1b|[\x00-\x08\x0b-\x1f\x7f]"
)
"""Control sequences and strings of a terminal (ECMA-48), which systemd and agetty write to the console."""


def write_seed(target: Path, texts: Mapping[str, tuple[str, int]], files: Mapping[str, Path]) -> None:
    """A tar that the guest unpacks over its root at first boot: texts with their modes, and executables."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in _parents([*texts, *files]):
            folder = tarfile.TarInfo(name.lstrip("/"))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o700 if name == "/root/.ssh" else 0o755
            tar.addfile(folder)
        for name, (text, mode) in texts.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(text.encode()), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, source in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = source.stat().st_size, 0o755
            with source.open("rb") as content:
                tar.addfile(entry, content)
    target.chmod(0o600)


def _parents(names: Iterable[str]) -> list[str]:
    """Folders to make, leaving alone those that every system has."""
    found = {str(parent) for name in names for parent in Path(name).parents}
    return sorted(name for name in found if name.count("/") > 1 and name not in ("/etc/ssh", "/usr/local"))


def make_overlay(image: Image, target: Path) -> None:
    """A copy-on-write disk over the image."""
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk), str(target)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=OVERLAY_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NodeError(f"qemu-img did not make {target} within {OVERLAY_S} s; does its disk answer?") from error
    if done.returncode != 0:
        raise NodeError(f"qemu-img could not make the node's disk: {done.stderr.strip()}")


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different TCP ports on loopback that were free a moment ago; one drawn after another could come twice."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def accelerator(image: Image, folder: Path) -> str:
    """``kvm`` when a guest really boots with it here, else ``tcg`` (software emulation). ``LAB_ACCEL`` overrides.

    Probed once per boot of this machine; the answer is kept beside the image.
    """
    forced = os.environ.get("LAB_ACCEL")
    if forced in ("kvm", "tcg"):
        return forced
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = image.folder / f"accelerator-{boot_id}"
    if not known.exists():
        temporary = folder / "accelerator"
        temporary.write_text("kvm" if _boots_with_kvm(image, folder) else "tcg")
        temporary.replace(known)
    return known.read_text()


def _boots_with_kvm(image: Image, folder: Path) -> bool:
    """Boot the kernel without a root file system and look for its first line: a device node alone proves nothing."""
    console = folder / "kvm-probe.log"
    argv = [
        "qemu-system-x86_64", "-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "512", "-nographic",
        "-kernel", str(image.kernel), "-append", "console=ttyS0 panic=-1", "-no-reboot",
        "-serial", f"file:{console}", "-monitor", "none", "-nodefaults",
    ]  # fmt: skip
    child = processes.start(argv, folder=folder, log=folder / "kvm-probe.err")
    deadline = Deadline.after(KVM_PROBE_S)
    try:
        while deadline.remaining_s() > 0:
            if console.exists() and "Linux version" in console.read_text(errors="replace"):
                return True
            if child.poll() is not None:
                return False
            time.sleep(0.1)
        return False
    finally:
        child.kill()
        _wait_killed(child)


def _wait_killed(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(timeout=KILLED_S)
    except subprocess.TimeoutExpired as error:
        raise NodeError(
            f"QEMU (process {child.pid}), started to see whether KVM works here, did not end within {KILLED_S} s of "
            "being killed; LAB_ACCEL=tcg leaves KVM alone"
        ) from error


def command_line(
    *, image: Image, overlay: Path, seed: Path, console: Path, forwards: Mapping[int, int], accel: str, vcpus: int,
    memory_mib: int,
) -> list[str]:
    """QEMU's argv. ``forwards`` maps ports on this machine's loopback to ports of the guest.

    No secret stands in it: keys are in the seed file.
    """
    forwarding = ",".join(f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in forwards.items())
    # In an option with several keys QEMU reads two commas as one that belongs to the value.
    disk, files = (str(path).replace(",", ",,") for path in (overlay, seed))
    acceleration = ["-accel", "kvm", "-cpu", "host"]
    if accel == "tcg":
        acceleration = ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max"]
    return [
        "qemu-system-x86_64", "-name", "lab-node,debug-threads=on", "-machine", "q35", *acceleration,
        "-smp", str(vcpus), "-m", str(memory_mib),
        "-kernel", str(image.kernel), "-initrd", str(image.initrd),
        "-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off loglevel=4 psi=1 panic=5",
        "-drive", f"file={disk},format=qcow2,if=virtio,cache=unsafe",
        "-drive", f"file={files},format=raw,if=virtio,readonly=on",
        "-netdev", f"user,id=net0,{forwarding}", "-device", "virtio-net-pci,netdev=net0",
        "-device", "virtio-rng-pci", "-nographic", "-nodefaults", "-no-reboot",
        "-serial", f"file:{console}", "-monitor", "none",
    ]  # fmt: skip


def watchman(pid: int, folder: Path) -> Callable[[], None]:
    """A cheap question whether QEMU still runs; it raises NodeError with the console's end when it does not."""
    process = processes.identity(pid)

    def check() -> None:
        if process is None or not process.is_alive():
            why = panic(folder)
            cause = f"its QEMU process {pid} has ended" if why is None else f"its kernel panicked ({why})"
            raise NodeError(f"the guest is gone, {cause}; console:\n{last_words(folder)}")

    return check


def panic(folder: Path) -> str | None:
    """Why the guest's kernel gave up, by its console: the first oops, else the panic itself; None if it did not."""
    said = console_tail(folder / "console.log", PANIC_LINES)
    if (end := PANIC.search(said)) is None:
        return None
    oops = OOPS.search(said)
    return end[1] if oops is None else oops[0]


def last_words(folder: Path) -> str:
    """Of a guest that has ended: the console's end, and what QEMU itself has said, if anything."""
    return f"{console_tail(folder / 'console.log')}\n{_last_lines(folder / 'qemu.log')}".rstrip()


def console_tail(console: Path, lines: int = LAST_LINES) -> str:
    """Last lines of the console, or words that say that there are none."""
    return _last_lines(console, lines) or "(no console output)"


def _last_lines(path: Path, lines: int = LAST_LINES) -> str:
    """Of a file that may be missing: without terminal control sequences and empty lines."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    written = [line.rstrip() for line in CONTROL.sub("", text).split("\n") if line.strip()]
    return "\n".join(written[-lines:])


def thread_names(pid: int) -> dict[int, str]:
    """Threads of the QEMU process that run virtual CPUs: thread id to name (``CPU 0/TCG``); none once it has ended."""
    names = {}
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return {}
    for task in tasks:
        try:
            name = (task / "comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("CPU "):
            names[int(task.name)] = name
    return names
