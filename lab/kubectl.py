"""Thin typed calls of kubectl, on whatever host the API server can be reached from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.host import Command, Completed, Deadline, Host, wait_until
from lab.model import NodeError, ParseError, WaitTimeout


def _no_matter() -> None:
    """For an API server that goes with the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl with one kubeconfig. ``argv`` is how it is started on ``host`` (``k3s kubectl`` is two words).

    ``check_node`` is asked before each call: it raises TransportError when the pods' machine is known to be gone, which
    an API server elsewhere would notice late or never.
    """

    host: Host
    argv: tuple[str, ...]
    kubeconfig: str
    check_node: Callable[[], None] = _no_matter

    def call(
        self, *words: str, stdin: str = "", timeout_s: float = 60.0, check: bool = True, repeatable: bool = False
    ) -> Completed:
        """One call with its own deadline; CommandError on failure unless ``check`` is False."""
        self.check_node()
        argv = (*self.argv, f"--kubeconfig={self.kubeconfig}", f"--request-timeout={timeout_s:g}s", *words)
        return self.host.run(
            Command(argv=argv, stdin=stdin, timeout_s=timeout_s + 10, check=check, repeatable=repeatable)
        )

    def without_node(self) -> Kubectl:
        """The same, to ask what the API server still knows of a node that is gone."""
        return replace(self, check_node=_no_matter)

    def get(self, *words: str) -> dict[str, Any]:
        """``kubectl get … -o json`` as a dict; ParseError when the answer is no JSON object."""
        return as_object(self.get_text(*words))

    def get_text(self, *words: str) -> str:
        """``kubectl get … -o json`` as it came."""
        return self.call("get", *words, "-o", "json", repeatable=True).stdout

    def raw(self, path: str) -> str:
        """GET of an API path, such as ``/readyz`` or ``/metrics``."""
        return self.call("get", "--raw", path, repeatable=True).stdout

    def apply(self, manifest: str) -> None:
        """Server-side apply, which is safe to repeat."""
        self.call("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest, repeatable=True)

    def create(self, manifest: str, *, dry_run: bool = False, check: bool = True) -> Completed:
        """Create; ``dry_run`` goes through admission on the server and stores nothing, so only that may be repeated."""
        words = ["create", "-f", "-", *(["--dry-run=server"] if dry_run else []), "-o", "name"]
        return self.call(*words, stdin=manifest, check=check, repeatable=dry_run)

    def delete(self, namespace: str, names: Sequence[str], *, deadline: Deadline) -> None:
        """Delete pods and wait until the API has forgotten them, after the kubelet has ended their containers."""
        if not names:
            return
        pods = [f"pod/{name}" for name in names]
        words = ("-n", namespace, "--ignore-not-found", "--grace-period=1", "--wait=false")
        # Those that are gone are passed over, so a second time does no harm.
        self.call("delete", *pods, *words, repeatable=True)

        def gone() -> tuple[bool | None, str]:
            left = [item["metadata"]["name"] for item in self.get("pods", "-n", namespace)["items"]]
            still = sorted(set(left) & set(names))
            return (None if still else True), f"still there: {', '.join(still)}"

        wait_until(f"pods to go: {', '.join(names)}", gone, deadline, interval_s=0.5)

    def wait_running(self, namespace: str, names: Sequence[str], deadline: Deadline) -> dict[str, Any]:
        """Wait until every pod runs with all its containers ready; returns the pod list as read."""

        def probe() -> tuple[dict[str, Any] | None, str]:
            found = self.get("pods", "-n", namespace)
            pods = {item["metadata"]["name"]: item for item in found["items"]}
            states = {name: pod_state(pods.get(name)) for name in names}
            dead = {name: state for name, state in states.items() if state.startswith(("Failed", "Succeeded"))}
            if dead:
                raise NodeError(f"pods ended instead of running: {dead}")
            if all(state == "Running" for state in states.values()):
                return found, ""
            return None, ", ".join(f"{name} {state}" for name, state in states.items() if state != "Running")

        return wait_until(f"pods to run: {', '.join(names)}", probe, deadline, interval_s=1.0)


def as_object(text: str) -> dict[str, Any]:
    """JSON text to a dict; ParseError quoting the text otherwise."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ParseError("not JSON", text) from error
    if not isinstance(value, dict):
        raise ParseError("not a JSON object", text)
    return value


def pod_state(pod: dict[str, Any] | None) -> str:
    """One word or a short reason: ``Running`` only when every container is ready."""
    if pod is None:
        return "absent"
    status = pod.get("status", {})
    phase = str(status.get("phase", "unknown"))
    containers = status.get("containerStatuses", [])
    if phase == "Running" and containers and all(entry.get("ready") for entry in containers):
        return "Running"
    if phase == "Failed":
        return f"Failed ({status.get('reason') or status.get('message') or 'no reason'})"
    states = [entry.get("state", {}) for entry in containers]
    waiting = [state["waiting"].get("reason", "") for state in states if "waiting" in state]
    if phase == "Running":
        return f"not ready {' '.join(waiting)}".strip()
    return f"{phase} {' '.join(waiting)}".strip()


def wait_for_api(kubectl: Kubectl, deadline: Deadline) -> None:
    """Wait for ``/readyz`` to say ok."""

    def probe() -> tuple[bool | None, str]:
        try:
            done = kubectl.call("get", "--raw", "/readyz", timeout_s=5, check=False, repeatable=True)
        except WaitTimeout as error:
            return None, str(error)
        return (True if done.stdout.strip() == "ok" else None), (done.stdout + done.stderr).strip()[-300:]

    wait_until("the API server (/readyz)", probe, deadline, interval_s=0.2)
