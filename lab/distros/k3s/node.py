"""k3s on a node: laid down, started, waited for and asked what it is; each in one round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.distros import configz
from lab.distros.contract import NODE_NAME, PROJECT_FOLDER
from lab.distros.k3s import settings
from lab.host import Command, Deadline, Host, put_texts
from lab.kubectl import Kubectl
from lab.model import GATED, Cell, NodeError
from lab.parse.node_facts import NodeFacts, feature_gates, parse_node_facts, sections

STEPS_S = (settings.START_S, 180, 120, 180, 120, 60, 120)
"""Limits of the steps of k3s_start.sh: unit, /readyz, node object, Ready, image, service accounts, no pressure."""

FACTS_S = 120.0
SLACK_S = 60.0
"""How long a step may go on beyond its limit: one call of kubectl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What runs on a node, read back. ``gates`` has the lines of both components' metrics, by component.

    ``version_line`` is the first line of ``k3s --version``.
    """

    facts: NodeFacts
    version_line: str
    configz: str
    api_version: str
    gates: Mapping[str, str]

    @property
    def kubelet_config(self) -> Mapping[str, Any]:
        """See :func:`lab.distros.configz.kubelet_config`."""
        return configz.kubelet_config(self.configz)


def put_scripts(host: Host, scripts: Mapping[str, str], others: Mapping[str, tuple[str, int]]) -> None:
    """Lay the node programs, as they are in the project now, and other texts onto the node."""
    programs = {f"{PROJECT_FOLDER}/node-scripts/{name}": (text, 0o755) for name, text in scripts.items()}
    put_texts(host, {**programs, **others})


def start(host: Host, cell: Cell, deadline: Deadline) -> str:
    """Start the unit and wait until pods can be created; what the steps said, one a line.

    NodeError with the step, its last state and the journal's end.
    """
    total_s = int(max(1.0, min(deadline.remaining_s(), float(sum(STEPS_S)))))
    words = (str(total_s), *(str(limit_s) for limit_s in STEPS_S), NODE_NAME, settings.NAMESPACE)
    argv = ("sh", f"{PROJECT_FOLDER}/node-scripts/k3s_start.sh", *words)
    done = host.run(Command(argv=argv, timeout_s=total_s + SLACK_S, repeatable=True, check=False))
    if done.exit_status != 0 or done.stdout.splitlines()[-1:] != ["ready"]:
        said = (done.stdout + done.stderr).strip()[-3000:] or f"exit status {done.exit_status}"
        raise NodeError(f"{host.name}: k3s {cell.version} is not ready:\n{said}")
    return done.stdout


def read_state(host: Host) -> State:
    """Ask the node; NodeError names what did not answer, ParseError what could not be read."""
    argv = ("sh", f"{PROJECT_FOLDER}/node-scripts/k3s_facts.sh")
    facts = parse_node_facts(host.run(Command(argv=argv, timeout_s=FACTS_S, repeatable=True)).stdout)
    found = sections(facts.text)
    gates = {component: found.get(f"gates-{component}", "") for component in GATED}
    for component, text in gates.items():
        if not feature_gates(text):
            raise NodeError(f"{host.name}: the metrics of the {component} list no gate: {text[-300:] or 'nothing'}")
    return State(
        facts=facts,
        version_line=found.get("k3s", "").partition("\n")[0],
        configz=found.get("configz", ""),
        api_version=found.get("api-version", ""),
        gates=gates,
    )


def kubectl(host: Host) -> Kubectl:
    """kubectl as the administrator; its cache stays within the lab's folders."""
    return Kubectl(host=host, argv=settings.KUBECTL, kubeconfig=settings.KUBECONFIG)
