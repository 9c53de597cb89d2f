"""``k3s server``: every component as a child in the unit's own group, their messages in the unit's own journal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import components, footprint, layout, settings
from .api import Api
from .staging import Release, write

PAUSE_S = 2.0
"""Between two looks: each costs an emulated processor a TLS handshake."""

STOP_S = 20.0


class Stopped(BaseException):
    """systemd wants the end."""


class Ended(Exception):
    """A part has ended by itself, and with it the whole, as in one process."""


def log(message: str, level: str = "info") -> None:
    """One line in k3s's own form, among those of the components."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f'time="{stamp}" level={level} msg="{message}"\n')
    sys.stderr.flush()


def serve(release: Release) -> int:
    """Until systemd ends it, or a component ends; the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    log(f"Starting k3s {release.tag} ({layout.MARK})")
    server = Server(release)
    try:
        _misbehave(release)
        server.run()
    except Stopped:
        log("Shutdown request received")
        return 0
    except (Ended, layout.Refused, OSError) as error:
        log(str(error).replace('"', "'"), "fatal")
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.end()


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _misbehave(release: Release) -> None:
    """What a faulty release does instead of starting."""
    if release.behaviour == layout.NEVER_READY:
        while True:
            log("Waiting for cri connection: rpc error: code = Unavailable", "warning")
            time.sleep(10)
    if release.behaviour == layout.ENDS:
        raise Ended("starting kubernetes: preparing server: this release ends at every start")
    tries = Path(layout.TRIES)
    if release.behaviour == layout.ENDS_ONCE and not tries.exists():
        write(tries, "1\n")
        raise Ended("starting kubernetes: preparing server: this release ends at its first start")


class Server:
    """The components of one node. ``children``: name to process, in the order of their start."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> NoReturn:
        """Start everything in its order, then watch it. Ended when a component ends, Stopped by systemd."""
        self.release.stage()
        config = settings.config(Path(layout.CONFIG).read_text(encoding="utf-8"))
        self._prepare(config)
        api = Api()
        self._start("etcd", components.etcd())
        self._start("kube-apiserver", components.api_server(config))
        self._start("containerd", components.containerd(), Path(layout.CONTAINERD_LOG))
        self._wait("the API server", api.is_ready)
        self._start("kube-scheduler", components.scheduler(config))
        self._start("kube-controller-manager", components.manager(config))
        self.release.lay_kubeconfig()
        log(f"Wrote kubeconfig {layout.KUBECONFIG}")
        self._wait("containerd", _containerd_listens)
        self._start("kubelet", components.kubelet(config))
        notify("READY=1")
        log("k3s is up and running")
        self._wait("the node", api.greet_node)
        log(f"Successfully registered node {layout.NODE_NAME}")
        while True:
            self._check_alive("anything else")
            time.sleep(PAUSE_S)

    def _prepare(self, config: settings.Config) -> None:
        """Everything that has to be there before the first component starts."""
        is_unit = "INVOCATION_ID" in os.environ
        self._check_files(config)
        self.release.lay_keys()
        write(Path(layout.CONTAINERD_CONFIG), components.containerd_config(config, is_unit=is_unit), 0o600)
        write(Path(layout.KUBELET_CONFIGS, "00-k3s-defaults.conf"), components.kubelet_defaults(is_unit=is_unit), 0o600)
        for folder in (f"{layout.AGENT}/containerd", f"{layout.AGENT}/pod-manifests", layout.DATABASE):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        # As the kubelet does it for the one process that k3s is; what starts from here inherits it.
        Path("/proc/self/oom_score_adj").write_text("-999")
        footprint.lay(log)

    @staticmethod
    def _check_files(config: settings.Config) -> None:
        """Refused for a drop-in or an image that the lab is not known to bring."""
        for drop_in in sorted(Path(layout.KUBELET_CONFIGS).glob("*")):
            if drop_in.name == "50-lab.conf":
                settings.check_drop_in(drop_in.read_text(encoding="utf-8"), str(drop_in), config.gates)
            elif drop_in.name != "00-k3s-defaults.conf":
                raise layout.Refused(f"{drop_in}: a drop-in that is not known")
        for image in Path(layout.IMAGES).glob("*"):
            raise layout.Refused(f"{image}: this stand-in imports no images of its own")

    def _start(self, name: str, argv: list[str], log_file: Path | None = None) -> None:
        log(f"Running {name} {' '.join(argv[1:])}")
        environment = {**os.environ, "PATH": f"{layout.BIN}:{os.environ.get('PATH', '')}"}
        # The notification is this process's alone: containerd would say that it is ready as well.
        environment.pop("NOTIFY_SOCKET", None)
        if log_file is None:
            self.children[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment)
            return
        with log_file.open("ab") as target:
            self.children[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=target, stderr=target, env=environment
            )

    def _wait(self, what: str, is_done: Callable[[], bool]) -> None:
        """Until ``is_done``, without a limit of its own, as k3s; Ended when a component has ended meanwhile."""
        while not is_done():
            self._check_alive(what)
            time.sleep(PAUSE_S)

    def _check_alive(self, what: str) -> None:
        for name, child in self.children.items():
            if child.poll() is not None:
                raise Ended(f"{name} ended with {child.returncode} while waiting for {what}")

    def end(self) -> None:
        """End the components, the newest first; the shims are not among them, and pods go on."""
        for child in reversed(self.children.values()):
            child.terminate()
            try:
                child.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _containerd_listens() -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(layout.SOCKET)
        except OSError:
            return False
    return True


def notify(text: str) -> None:
    """Tell systemd (sd_notify(3)), when it listens."""
    place = os.environ.get("NOTIFY_SOCKET")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.sendto(text.encode(), f"\0{place[1:]}" if place.startswith("@") else place)
