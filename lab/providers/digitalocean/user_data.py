"""What a new droplet is told at its first boot, as cloud-config. Pure.

The only secret in it is a host key that is used for one connection and then replaced: user data stay readable on the
node, also by its pods, for as long as it lives.
"""

from __future__ import annotations

from typing import Any

import yaml

SSH_DROP_IN = "/etc/ssh/sshd_config.d/00-lab-port.conf"

QUIET = (
    "systemctl mask --now apt-daily.timer apt-daily-upgrade.timer unattended-upgrades.service"
    " apt-daily.service apt-daily-upgrade.service || true"
)
"""First-boot upgrades take CPU and restart services in the middle of a measurement."""


class _Literal(str):
    """A text that is written as a literal block: the key must end with a line end."""


def _literal(dumper: yaml.SafeDumper, value: _Literal) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style="|")


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(_Literal, _literal)


def cloud_config(*, host_private: str, host_public: str, ssh_port: int) -> str:
    """``#cloud-config`` text: the pinned host key, no first-boot upgrades, and sshd on ``ssh_port``.

    ``host_private`` is in OpenSSH form and ends with a line end (cloudinit/config/cc_ssh.py).
    """
    if not host_private.endswith("\n"):
        raise ValueError("an OpenSSH private key ends with a line end")
    config: dict[str, Any] = {
        "ssh_keys": {"ed25519_private": _Literal(host_private), "ed25519_public": host_public.strip()},
        "disable_root": False,
        "ssh_pwauth": False,
        "package_update": False,
        "package_upgrade": False,
        "bootcmd": [["sh", "-c", QUIET]],
    }
    if ssh_port != 22:
        config["write_files"] = [{"path": SSH_DROP_IN, "content": _Literal(f"Port 22\nPort {ssh_port}\n")}]
        restart = "systemctl daemon-reload; systemctl try-restart ssh.socket; systemctl restart ssh"
        config["runcmd"] = [["sh", "-c", restart]]
    return "#cloud-config\n" + yaml.dump(config, Dumper=_Dumper, sort_keys=True, width=1000)
