"""A machine of the user's own, as far as its provider sees it."""

from __future__ import annotations

import json

from lab.model import TransportError
from lab.providers.own_host import lock, preflight
from tests.captures_helper import ROOT
from tests.fakes import FakeHost, Reply

NOW = 1_800_000_000
"""The host's clock, Unix time."""

FIT = {
    "system": "Linux x86_64",
    "init": "systemd",
    "booted": "/run/systemd/system",
    "cgroup": "cgroup2fs",
    "controllers": "cpuset cpu io memory hugetlb pids rdma misc",
    "python": "3.12",
    "cpus": "4",
    "memory": "MemTotal 4005116\nSwapTotal 0",
    "virtualization": "kvm",
    "os": "Ubuntu 24.04.1 LTS",
    "processes": "systemd\nsshd\ncontainerd\ndockerd",
    "units": "containerd.service enabled enabled\nssh.service enabled enabled",
    "paths": "",
    "tcp": (
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:192B 0100007F:A1B2 01 00000000:00000000"
    ),
}


def probe(**changes):
    found = {**FIT, **changes}
    return preflight.HEADER + "\n" + "".join(f"== {name}\n{text}\n" for name, text in found.items()) + "== end\n"


def print_of(*entries):
    rows = [{"kind": "start", "program": "fingerprint", "version": 1}]
    rows += [{"kind": kind, "name": name, "value": value} for kind, name, value in entries]
    return "".join(json.dumps(row) + "\n" for row in [*rows, {"kind": "end"}])


CLEAN = (("unit", "ssh.service", "loaded active running"), ("file", "/etc/hosts", "-rw-r--r-- 0:0 20 bytes"))
KUBEPODS = ("cgroup", "/kubepods.slice", "")


class OwnHost(FakeHost):
    """A machine with a lock file, and the fingerprints that it will show, the last one for ever."""

    def __init__(self, prints=(CLEAN,), **changes):
        super().__init__("own")
        self.address = None
        self.lock_text = None
        self.prints = [print_of(*entries) for entries in prints]
        self.removals = 0
        self.k3s_removals = 0
        self.remove_says = Reply()
        self.is_reachable = True
        self.becomes = []
        self.answer_when(lambda command: command.argv[:6] == lock.FLOCK, self._lock)
        self.answer(("sh", "-c", preflight.SCRIPT), Reply(stdout=probe(**changes)))
        booted = ("timeout", "120", "systemctl", "is-system-running", "--wait")
        self.answer(booted, Reply(stdout="degraded\n", status=1))
        self.answer(("python3", "-I", "-B", "-"), self._print)
        self.answer(("rm", "-rf", "--one-file-system", "--", "/opt/lab"), Reply())
        self.answer_when(lambda command: command.argv[-1].endswith("k3s_remove.sh"), self._remove_k3s)
        self.answer_when(lambda command: command.argv[-1].endswith("upstream_remove.sh"), self._remove)

    def connect(self, timeout_s=20.0):
        super().connect(timeout_s)
        self._reach()

    def check_become(self):
        self.becomes.append(self.address.user)

    def run(self, command):
        self._reach()
        return super().run(command)

    def _reach(self):
        if not self.is_reachable:
            raise TransportError("own: connection lost")

    def _lock(self, command):
        script, words = command.argv[6], command.argv[8:]
        assert words[0] == "/var/lib/node-lab.lock"
        assert command.repeatable
        if script == lock.RELEASE:
            if self.lock_text == words[1]:
                self.lock_text = None
            return Reply()
        assert script == lock.TAKE
        if self.lock_text is None or (words[2] and self.lock_text == words[2]):
            self.lock_text = words[1]
        return Reply(stdout=f"{NOW}\n{self.lock_text}\n")

    def _print(self, command):
        assert command.stdin == (ROOT / "node-scripts/fingerprint.py").read_text()
        return Reply(stdout=self.prints.pop(0) if len(self.prints) > 1 else self.prints[0])

    def _remove_k3s(self, command):
        assert command.stdin == (ROOT / "node-scripts/k3s_remove.sh").read_text()
        self.k3s_removals += 1
        assert self.k3s_removals == self.removals + 1, "upstream's removal takes away the record that this one goes by"
        return Reply(stdout="nothing installed\n")

    def _remove(self, command):
        assert command.stdin == (ROOT / "node-scripts/upstream_remove.sh").read_text()
        self.removals += 1
        return self.remove_says

    def count(self, *argv):
        return sum(command.argv[: len(argv)] == argv for command in self.commands)
