"""Real raw texts of one attempt per version and stage, ways to damage them, and a stage bench without a node.

``tests/captures/<version>/<stage>/`` is the ``raw/`` folder of a stored attempt; the folder's name is a cell's without
its distribution (``v1.37.2``, ``v1.37.2+PodLevelResources=false``). A version that is added there is picked up by every
test that asks for :func:`versions`.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.claims import Claim, applies, parse_claims
from lab.distros.contract import Cluster
from lab.host import Command
from lab.judging import judge
from lab.kubectl import Kubectl
from lab.manifests import Manifests
from lab.model import GATED, Cell, Gate
from lab.phases import Phases
from lab.providers.contract import Node
from lab.stages import registry
from lab.stages.context import START, WAIT, StageContext
from tests.fakes import FAKE_SITE, FakeHost, Reply, kubectl_words

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ROOT / "tests" / "captures"

Raw = dict[str, str]
Record = dict[str, Any]


# --- captures and verdicts --------------------------------------------------------------------------------------------


def versions(stage: str) -> list[str]:
    """Captured versions that have this stage."""
    return sorted(path.parent.name for path in CAPTURES.glob(f"*/{stage}"))


def load(version: str, stage: str) -> Raw:
    """Name to text of one captured attempt."""
    folder = CAPTURES / version / stage
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def cell_of(version: str) -> Cell:
    """The cell that a capture's folder stands for."""
    number, *gates = version.split("+")
    return Cell(distro="upstream", version=number, gates=tuple(Gate.parse(text) for text in gates))


@functools.cache
def claims() -> tuple[Claim, ...]:
    """The claims of the repository."""
    return parse_claims((ROOT / "CLAIM.md").read_text())


def applicable(stage: str, version: str) -> list[str]:
    """Ids of the stage's claims that are made for this version."""
    return [claim.id for claim in claims() if claim.stage == stage and applies(claim, cell_of(version))]


def observation_of(stage: str, version: str, raw: Mapping[str, str]) -> dict[str, Any]:
    """The parsed texts; the test fails when they cannot be parsed."""
    observation, record = judge(registry.BY_NAME[stage], cell_of(version), raw, claims())
    assert observation is not None, record["problem"]
    return observation


def verdict_record(stage: str, version: str, raw: Mapping[str, str]) -> dict[str, Any]:
    """verdict.json of the texts."""
    return judge(registry.BY_NAME[stage], cell_of(version), raw, claims())[1]


def outcomes(stage: str, version: str, raw: Mapping[str, str]) -> dict[str, str]:
    """Claim id to HELD, MISSED, FALSIFIED or UNKNOWN."""
    return {entry["claim"]: entry["outcome"] for entry in verdict_record(stage, version, raw)["verdicts"]}


def configz_for(kubelet_yaml: str) -> str:
    """What a kubelet of v1.37.2 said of its configuration, with the gates, and these alone, that the YAML sets."""
    said = json.loads(load("v1.37.2", "class")["configz.json"])
    gates = yaml.safe_load(kubelet_yaml).get("featureGates")
    assert "featureGates" not in said["kubeletconfig"]
    return json.dumps({"kubeletconfig": said["kubeletconfig"] | ({"featureGates": gates} if gates else {})})


# --- damaging a capture -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change to captured texts, and what each claim that it touches must become. The others keep their outcome.

    ``only_where`` names a claim: the mutant means something only for versions for which that claim is made.
    """

    name: str
    change: Callable[[Raw], None]
    verdicts: Mapping[str, str]
    only_where: str | None = None

    def fits(self, made: Sequence[str]) -> bool:
        """Whether it touches one of the claims that are made for a version."""
        return bool(set(self.verdicts) & set(made)) and self.only_where in (None, *made)


def mutant_cases(stage: str, mutants: Sequence[Mutant]) -> list[Any]:
    """Every mutant on every captured version for which it touches a claim that is made there."""
    return [
        pytest.param(version, mutant, id=f"{version}-{mutant.name}")
        for version in versions(stage)
        for mutant in mutants
        if mutant.fits(applicable(stage, version))
    ]


def check_shown(stage: str, version: str, raw: Mapping[str, str]) -> None:
    """What a person reads of an observation is text, whatever the texts were: row and notes never raise."""
    observation, _ = judge(registry.BY_NAME[stage], cell_of(version), raw, claims())
    if observation is not None:
        shown = registry.BY_NAME[stage].row(observation)
        assert {type(text) for text in [*shown, *shown.values(), *registry.BY_NAME[stage].notes(observation)]} == {str}


def check_mutant(stage: str, version: str, mutant: Mutant) -> None:
    """The mutant turns every claim that it touches FALSIFIED or UNKNOWN, as written, and no other."""
    raw = load(version, stage)
    changed = dict(raw)
    mutant.change(changed)
    assert changed != raw, "the mutant changed nothing"
    before, after = outcomes(stage, version, raw), outcomes(stage, version, changed)
    wanted = {claim: outcome for claim, outcome in mutant.verdicts.items() if claim in before}
    assert set(wanted.values()) <= {"FALSIFIED", "UNKNOWN"}
    assert {before[claim] for claim in wanted} <= {"HELD", "MISSED"}
    assert after == {**before, **wanted}
    check_shown(stage, version, changed)


def edit_text(raw: Raw, name: str, old: str, new: str) -> None:
    """Replace a text wherever it stands in one file; it must stand there."""
    assert old in raw[name], f"{name} does not hold {old!r}"
    raw[name] = raw[name].replace(old, new)


def edit_json(raw: Raw, name: str, change: Callable[[Any], None]) -> None:
    """Change one JSON text in place."""
    data = json.loads(raw[name])
    change(data)
    raw[name] = json.dumps(data)


def edit_records(raw: Raw, name: str, change: Callable[[Record], Record | None]) -> None:
    """Change each record of a node program's output; None leaves it out."""
    changed = [change(json.loads(line)) for line in raw[name].splitlines()]
    raw[name] = "".join(json.dumps(record, sort_keys=True) + "\n" for record in changed if record is not None)


def exchange_words(raw: Raw, name: str, names: Mapping[str, str]) -> None:
    """Rename consistently and at once, so that names can be exchanged; keys are whole quoted words of the file."""
    text = raw[name]
    for position, old in enumerate(names):
        assert f'"{old}"' in text, f"{name} does not name {old}"
        text = text.replace(f'"{old}"', f'"\0{position}"')
    for position, new in enumerate(names.values()):
        text = text.replace(f'"\0{position}"', f'"{new}"')
    raw[name] = text


def without(*names: str) -> Callable[[Raw], None]:
    """Change that takes whole files away."""

    def change(raw: Raw) -> None:
        for name in names:
            del raw[name]

    return change


def cut(name: str, part: float = 0.5) -> Callable[[Raw], None]:
    """Change that keeps only the beginning of a file."""

    def change(raw: Raw) -> None:
        raw[name] = raw[name][: int(len(raw[name]) * part)]

    return change


def emptied(name: str) -> Callable[[Raw], None]:
    """Change that leaves a file without a text, as a read-back that failed does."""
    return lambda raw: raw.update({name: ""})


def gate_unread(component: str, gate: str) -> Callable[[Raw], None]:
    """Change that takes one gate out of what a component's metrics said."""

    def change(raw: Raw) -> None:
        name = f"gates-{component}.txt"
        raw[name] = "".join(line for line in raw[name].splitlines(True) if f'name="{gate}"' not in line)

    return change


def nothing_shows_the_cell(claims: Sequence[str], fixed: str | None = None) -> list[Mutant]:
    """Mutants of what the components said of themselves, which leave ``claims`` (all of a stage) without a proof.

    ``fixed`` is one that is made only where there is a gate of the fix.
    """
    unknown = dict.fromkeys(claims, "UNKNOWN")
    files = ("gates-apiserver.txt", "gates-kubelet.txt", "node-facts.txt", "apiserver-version.json")
    found = [Mutant(name=f"{name} deleted", change=without(name), verdicts=unknown) for name in files]
    found += [Mutant(name=f"{name} emptied", change=emptied(name), verdicts=unknown) for name in files]
    for component in GATED:
        found.append(
            Mutant(
                name=f"PodLevelResources not read of the {component}",
                change=gate_unread(component, "PodLevelResources"),
                verdicts=unknown,
            )
        )
        if fixed is not None:
            found.append(
                Mutant(
                    name=f"gate of the fix not read of the {component}",
                    change=gate_unread(component, "PodLevelResourcesFixKubeletQOSClass"),
                    verdicts=unknown,
                    only_where=fixed,
                )
            )
    return found


# --- a cluster for collect --------------------------------------------------------------------------------------------

def node_object() -> dict[str, Any]:
    """A calm node."""
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}]
    return {"kind": "Node", "metadata": {"name": "node"}, "spec": {}, "status": {"conditions": conditions}}


class Bench:
    """A stage context whose API server keeps pods in a dict and whose node answers programs as a test has scripted.

    ``programs`` maps a node program to its answers (each given once, in order); ``journals`` a journal's source
    (unit, or ``kernel``) to its text; ``creates`` a pod's name to what creating it gives. ``saved`` is what the stage
    saved, ``steps`` the order of saves (``save NAME``), program runs and pod changes.
    """

    def __init__(self, tmp_path: Path, params: Mapping[str, Any], seed: int = 1) -> None:
        self.saved: Raw = {}
        self.steps: list[str] = []
        self.programs: dict[str, list[Reply | Exception]] = {}
        self.arguments: dict[str, list[tuple[str, ...]]] = {}
        self.journals: dict[str, str] = {}
        self.creates: dict[str, Reply] = {}
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.said: list[str] = []
        self.slept: list[float] = []
        self.node_host, self.controller = FakeHost("node"), FakeHost("controller")
        self.controller.answer_when(lambda command: bool(kubectl_words(command)), self._kubectl)
        self.node_host.answer_when(lambda command: True, self._node)
        self.frozen_plane_usec = 0
        self._outputs: Raw = {}
        self._measuring: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        node = Node(
            id="bench",
            provider="fake",
            site=FAKE_SITE,
            folder=tmp_path,
            host=self.node_host,  # type: ignore[arg-type]
            facts={},
            controller_address=None,
        )
        cluster = Cluster(
            node=node,
            kubectl=Kubectl(host=self.controller, argv=("kubectl",), kubeconfig="/fake/kubeconfig"),
            cell=Cell(distro="upstream", version="v1.34.4"),
            kubelet_unit="lab-kubelet",
            kubelet_url="https://127.0.0.1:10250",
            credentials_folder="/etc/lab",
            must_agree={"control_plane": "node"},
            shown={},
            frozen=self._frozen,
        )
        self.context = StageContext(
            cluster=cluster,
            manifests=Manifests.load(ROOT / "manifests"),
            save=self._save,
            params=params,
            seed=seed,
            phases=Phases(),
            progress=self.said.append,
            sleep=self.slept.append,
        )

    @contextmanager
    def _frozen(self) -> Iterator[dict[str, int | None]]:
        self.steps.append("freeze")
        record: dict[str, int | None] = {"frozen_usage_usec": 7_000_000}
        try:
            yield record
        finally:
            self.steps.append("thaw")
        record["thawed_usage_usec"] = 7_000_000 + self.frozen_plane_usec

    def _units(self) -> list[str]:
        return [unit for unit, _, _ in self._measuring.values()]

    def _save(self, name: str, text: str) -> None:
        assert name not in self.saved, f"{name} is saved twice"
        self.saved[name] = text
        self.steps.append(f"save {name}")

    # The node: programs at once, programs in a slice with their output in a file, and the journal.

    def _node(self, command: Command) -> Reply:
        argv = command.argv
        if argv[:3] == ("sh", "-c", START):
            return self._start_measuring(*argv[4:])
        if argv[:3] == ("sh", "-c", WAIT):
            return self._wait_measured(*argv[4:])
        if argv[:2] == ("systemctl", "stop") and argv[2].removesuffix(".service") in self._units():
            return Reply()
        if argv[0] in ("python3", "sh") and argv[1].startswith("/opt/lab/node-scripts/"):
            return self._program(argv[1].rpartition("/")[2], argv[2:])
        if argv[0] == "cat":
            return Reply(stdout=self._outputs.get(argv[1], ""), status=0 if argv[1] in self._outputs else 1)
        if argv[:2] == ("journalctl", "-n"):
            return Reply(stdout="-- cursor: s=1;i=2\n")
        if argv[0] == "journalctl":
            return Reply(stdout=self.journals[argv[2] if argv[1] == "-u" else "kernel"])
        return pytest.fail(f"the node was not prepared for: {command.shown()}")

    def _program(self, name: str, words: Sequence[str]) -> Reply:
        self.arguments.setdefault(name, []).append(tuple(words))
        self.steps.append(f"run {name}")
        answers = self.programs.get(name)
        assert answers, f"no answer left for {name}"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _start_measuring(self, place: str, unit: str, program: str, *words: str) -> Reply:
        assert place not in self._measuring, f"{place} is started twice"
        self._measuring[place] = (unit, program.rpartition("/")[2], words)
        return Reply()

    def _wait_measured(self, place: str, unit: str) -> Reply:
        started, program, words = self._measuring[place]
        assert started == unit, (started, unit)
        reply = self._program(program, words)
        self._outputs[place], self._outputs[f"{place}.stderr"] = reply.stdout, reply.stderr
        return Reply(stdout=f"{reply.status}\n", seconds=reply.seconds)

    # The API server: what kubectl's reference says of get, apply, create and delete, as far as stages use it.

    def _kubectl(self, command: Command) -> Reply:
        assert self.steps.count("freeze") == self.steps.count("thaw"), "a call of an API server that stands still"
        verb, *words = kubectl_words(command)
        handlers = {"get": self._get, "apply": self._apply, "create": self._create, "delete": self._delete}
        assert verb in handlers, f"kubectl {verb} {shlex.join(words)}"
        return handlers[verb](words, command.stdin)

    def _get(self, words: list[str], stdin: str) -> Reply:
        del stdin
        kind, *rest = words
        namespace = rest[rest.index("-n") + 1] if "-n" in rest else None
        if kind == "pods":
            assert namespace is not None or "-A" in rest, words
            items = [pod for (space, _), pod in self.pods.items() if namespace in (None, space)]
            return Reply(stdout=json.dumps({"kind": "List", "items": items}))
        if kind == "pod":
            return Reply(stdout=json.dumps(self.pods[str(namespace), rest[0]]))
        if kind == "node":
            return Reply(stdout=json.dumps(node_object()))
        if kind == "resourcequota":
            return Reply(stdout=json.dumps({"kind": "ResourceQuota", "status": {"used": {"pods": "0"}}}))
        if kind in ("serviceaccount", "events"):
            return Reply(stdout=json.dumps({"kind": "List", "items": []}))
        return pytest.fail(f"the API server was not prepared for: get {shlex.join(words)}")

    def _apply(self, words: list[str], stdin: str) -> Reply:
        assert words[-2:] == ["-f", "-"], words
        for manifest in yaml.safe_load_all(stdin):
            if manifest["kind"] == "Pod":
                self._start(manifest)
            else:
                self.steps.append(f"apply {manifest['kind']}")
        return Reply()

    def _start(self, manifest: dict[str, Any]) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        self.steps.append(f"start {name}")
        metadata = {**manifest["metadata"], "uid": f"uid-of-{name}"}
        container = {"name": "main", "ready": True, "containerID": f"containerd://id-of-{name}"}
        status = {"phase": "Running", "containerStatuses": [container], "qosClass": "Burstable"}
        self.pods[namespace, name] = {"metadata": metadata, "spec": manifest["spec"], "status": status}

    def _create(self, words: list[str], stdin: str) -> Reply:
        manifest = yaml.safe_load(stdin)
        name = manifest["metadata"]["name"]
        dry = "--dry-run=server" in words
        self.steps.append(f"create {name}{' (dry run)' if dry else ''}")
        reply = self.creates[name]
        if reply.status == 0 and not dry:
            self.pods[manifest["metadata"]["namespace"], name] = {"metadata": manifest["metadata"], "spec": {}}
        return reply

    def _delete(self, words: list[str], stdin: str) -> Reply:
        del stdin
        namespace = words[words.index("-n") + 1]
        for name in [word.removeprefix("pod/") for word in words if word.startswith("pod/")]:
            self.steps.append(f"delete {name}")
            self.pods.pop((namespace, name), None)
        return Reply()
