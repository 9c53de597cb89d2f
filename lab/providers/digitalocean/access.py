"""The first contact with a new droplet: pinned key, first boot over, key replaced, closed to everybody else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.host import Command, Deadline, wait_until
from lab.model import CommandError, NodeError
from lab.ssh import Address, SshHost
from lab.ssh_trust import rotate_host_key

PROBE_PORT = 18022
"""A port that no rule of the firewall opens."""

PROBE_S = 5.0
CLOUD_INIT_S = 600.0

LISTEN = f"""\
import socket, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", {PROBE_PORT}))
server.listen()
time.sleep(60)
"""
REACH = f"import socket; socket.create_connection(('127.0.0.1', {PROBE_PORT}), timeout=5)"
UNIT = "lab-firewall-probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How droplets are reached and tried from outside."""

    progress: Callable[[str], None]

    def connect(
        self, *, name: str, address: str, port: int, host_public: str, identity: Path, deadline: Deadline
    ) -> SshHost:
        """A connection whose host key was replaced by one that never left the node. Root logs in."""
        where = Address(host=address, port=port, user="root", host_keys=(host_public.strip(),), identity=identity)
        host = SshHost(where, name)
        try:
            host.wait_ready(deadline)
            self.progress(f"{name} answers at {where.known_as}; waiting for the end of its first boot")
            wait_cloud_init(host, deadline.sooner(CLOUD_INIT_S))
            rotate_host_key(host)
        except BaseException:
            host.close()
            raise
        return host

    def prove_closed(self, host: SshHost) -> None:
        """NodeError when a program that listens on the node can be reached from here: the firewall does not hold."""
        start = ("systemd-run", "--quiet", "--collect", f"--unit={UNIT}", "python3", "-c", LISTEN)
        host.run(Command(argv=start, timeout_s=60))
        try:

            def listening() -> tuple[bool | None, str]:
                done = host.run(Command(argv=("python3", "-c", REACH), check=False, repeatable=True))
                return (True if done.exit_status == 0 else None), done.stderr.strip()[-200:]

            wait_until("a program on the node to listen", listening, Deadline.after(60))
            if _answers(host.address.host):
                raise NodeError(
                    f"port {PROBE_PORT} of {host.address.host} can be reached from here although only SSH is allowed: "
                    "the firewall does not hold, so nothing was installed"
                )
        finally:
            stop = ("systemctl", "stop", f"{UNIT}.service")
            host.run(Command(argv=stop, check=False, repeatable=True))

    def virtualization(self, host: SshHost) -> str:
        """``none`` on hardware, ``tcg`` under software emulation, else the hypervisor (systemd-detect-virt(1))."""
        found = host.run(Command(argv=("systemd-detect-virt", "--vm"), check=False, repeatable=True)).stdout.strip()
        return "tcg" if found == "qemu" else found or "none"


def _answers(address: str) -> bool:
    """Whether a TCP connection to the probe's port comes about, and stays: the listener never closes one.

    A forwarder in between may accept before it knows whether anybody is behind it, and close at once.
    """
    try:
        connection = socket.create_connection((address, PROBE_PORT), timeout=PROBE_S)
    except OSError:
        # Refused, unreachable, or (as by most firewalls) dropped, so that the time was over: closed all the same.
        return False
    with connection:
        connection.settimeout(PROBE_S)
        try:
            connection.recv(1)
        except TimeoutError:
            return True
        except OSError:
            return False
    return False


def wait_cloud_init(host: SshHost, deadline: Deadline) -> None:
    """Until the first boot is over; NodeError with what cloud-init says when it failed.

    ``cloud-init status`` ends with 0, 1 (failed) or 2 (done, with errors that it got over).
    """
    argv = ("cloud-init", "status", "--wait", "--long")
    done = host.run(Command(argv=argv, timeout_s=max(1.0, deadline.remaining_s()), check=False, repeatable=True))
    if done.exit_status not in (0, 2):
        raise CommandError(f"{host.name}: cloud-init failed: {(done.stdout + done.stderr).strip()[-600:]}")
