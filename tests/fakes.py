"""Stand-ins with the behaviour of the real things, for tests that need no node.

They are strict: a command, a step or a node that a test did not prepare fails that test. ``tests/contract`` runs the
same expectations against ``FakeHost`` and the real hosts, so that the fake cannot drift.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

from lab.distros.contract import Cluster, Waiting
from lab.host import UNPACK, Command, Completed, Deadline, failure_text, wait_until
from lab.kubectl import Kubectl
from lab.model import GATED, Cell, CommandError, LeftBehind, NoSuchNode, TransportError, UsageError, WaitTimeout
from lab.providers.contract import Node, NodeRecord, NodeSpec, Site


class FakeClock:
    """A clock that moves only when somebody sleeps or a command takes time: itself as clock, ``.sleep`` as sleep."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0, f"a sleep of {seconds} s"
        self.sleeps.append(seconds)
        self.now += seconds

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Deadlines:
    """In the place of the class :class:`Deadline` in a module under test: its deadlines are on this clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock)


def waits_on(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every ``wait_until`` of the test sleep on ``clock``; give it deadlines of the same clock."""
    assert wait_until.__kwdefaults__ is not None
    monkeypatch.setitem(wait_until.__kwdefaults__, "sleep", clock.sleep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a command gives. ``seconds`` over the command's deadline gives a WaitTimeout instead."""

    stdout: str = ""
    stderr: str = ""
    status: int = 0
    seconds: float = 0.0


Answer = Reply | Exception | Callable[[Command], Reply]


class FakeHost:
    """A :class:`lab.host.Host` (and the part of SshHost that providers use) whose every answer a test has prepared.

    ``commands`` holds what was run, in order; ``files`` maps a path to (bytes, mode); ``transfers`` the paths that
    ``put`` really wrote; ``channels`` counts what SshHost would open. Archives of :func:`lab.host.put_texts` are
    unpacked into ``files``.
    """

    def __init__(self, name: str = "fake", clock: FakeClock | None = None) -> None:
        self.name = name
        self.clock = clock or FakeClock()
        self.commands: list[Command] = []
        self.files: dict[str, tuple[bytes, int]] = {}
        self.transfers: list[str] = []
        self.channels = 0
        self.connects = 0
        self.closes = 0
        self.lost: TransportError | None = None
        self._exact: dict[tuple[str, ...], list[Answer]] = {UNPACK: [self._unpack]}
        self._when: list[tuple[Callable[[Command], bool], Answer]] = []

    def answer(self, argv: Sequence[str], *answers: Answer) -> None:
        """Prepare exactly this argv. One answer holds for ever; of several each is given once, in order."""
        assert answers, f"no answer given for {argv}"
        self._exact[tuple(argv)] = list(answers) if len(answers) == 1 else [*answers, _used_up]

    def answer_when(self, fits: Callable[[Command], bool], answer: Answer) -> None:
        """Prepare every command that ``fits`` accepts and whose argv was not prepared exactly."""
        self._when.append((fits, answer))

    @property
    def argvs(self) -> list[tuple[str, ...]]:
        return [command.argv for command in self.commands]

    def run(self, command: Command) -> Completed:
        self.commands.append(command)
        self.channels += 1
        answer = self._find(command)
        if isinstance(answer, Exception):
            raise answer
        reply = answer if isinstance(answer, Reply) else answer(command)
        self.clock.advance(min(reply.seconds, command.timeout_s))
        if reply.seconds > command.timeout_s:
            raise WaitTimeout(f"{self.name}: no end within {command.timeout_s:g} s: {command.shown()}")
        completed = Completed(
            argv=command.argv,
            exit_status=reply.status,
            stdout=reply.stdout,
            stderr=reply.stderr,
            seconds=reply.seconds,
        )
        if command.check and reply.status != 0:
            raise CommandError(failure_text(self.name, command, completed))
        return completed

    def _find(self, command: Command) -> Answer:
        if command.argv in self._exact:
            answers = self._exact[command.argv]
            return answers[0] if len(answers) == 1 else answers.pop(0)
        for fits, answer in self._when:
            if fits(command):
                return answer
        return pytest.fail(f"{self.name} was not prepared for: {command.shown()}")

    def put(self, files: Mapping[str, Path], *, mode: int = 0o644, timeout_s: float = 300.0) -> None:
        assert timeout_s > 0
        contents = {target: source.read_bytes() for target, source in files.items()}
        wanted = [target for target, content in contents.items() if self.files.get(target, (None, 0))[0] != content]
        self.transfers += wanted
        # What is there is asked for; then come the SFTP session and the step that moves files into their places.
        self.channels += 3 if wanted else 1
        self.files |= {target: (content, mode) for target, content in contents.items()}

    def put_text(self, text: str, target: str, *, mode: int = 0o644) -> None:
        self.channels += 1
        self.files[target] = (text.encode(), mode)

    def text(self, path: str) -> str:
        """A file's text; the test fails when nobody wrote it."""
        assert path in self.files, f"{path} was not written; there are {sorted(self.files)}"
        return self.files[path][0].decode()

    def connect(self, timeout_s: float = 20.0) -> None:
        assert timeout_s > 0
        self.connects += 1

    def close(self) -> None:
        self.closes += 1

    def check_alive(self) -> None:
        if self.lost is not None:
            raise self.lost

    @contextmanager
    def seeking_at_most(self, limit_s: float) -> Iterator[None]:
        assert limit_s > 0
        yield

    def _unpack(self, command: Command) -> Reply:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(command.stdin))) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None, f"{member.name} is no file"
                self.files[f"/{member.name}"] = (content.read(), member.mode)
        return Reply()


def _used_up(command: Command) -> Reply:
    return pytest.fail(f"more calls than prepared answers: {command.shown()}")


class Steps:
    """Calls in order as (step, what), and errors that a test wants some of them to raise.

    Give one object to a provider and a distribution, and ``calls`` shows their common order.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._failures: list[tuple[str, int | None, BaseException]] = []
        self._actions: list[tuple[str, Callable[[], None]]] = []

    def fail(self, step: str, error: BaseException, *, call: int | None = None) -> None:
        """Let ``step`` (``provider.create``, ``distro.install`` …) raise: always, or only at its Nth call (from 1)."""
        assert step in STEPS, f"no step {step}; there are {sorted(STEPS)}"
        self._failures.append((step, call, error))

    def during(self, step: str, action: Callable[[], None]) -> None:
        """Let something happen inside every call of ``step``: a signal, time that passes."""
        assert step in STEPS, f"no step {step}; there are {sorted(STEPS)}"
        self._actions.append((step, action))

    def enter(self, step: str, what: str) -> None:
        assert step in STEPS
        self.calls.append((step, what))
        for name, action in self._actions:
            if name == step:
                action()
        number = self.names().count(step)
        for name, call, error in self._failures:
            if name == step and call in (None, number):
                raise error

    def names(self) -> list[str]:
        return [step for step, _ in self.calls]


STEPS = frozenset(
    [f"provider.{step}" for step in ("create", "attach", "keep", "destroy")]
    + [f"distro.{step}" for step in ("files", "install", "attach", "save_logs", "uninstall")]
)


FAKE_SITE = Site(reaches_controller=True, has_runtime=True, is_lasting=False)


@dataclass(kw_only=True)
class FakeProvider:
    """A provider of nodes that are folders and fake hosts.

    ``alive`` maps the id of every node that was made and is not gone to its node. As the contract asks, a create that
    fails leaves nothing, and a destroy that fails (give it LeftBehind) leaves the node alive.
    """

    root: Path
    name: str = "fake"
    site: Site = FAKE_SITE
    price: Decimal = Decimal(0)
    steps: Steps = field(default_factory=Steps)
    make_host: Callable[[str], FakeHost] = FakeHost
    controller_address: str | None = "10.0.2.2"
    cpu_threads: Callable[[], Mapping[int, str]] = dict
    alive: dict[str, Node] = field(default_factory=dict)
    kept: dict[str, float] = field(default_factory=dict)
    specs: list[NodeSpec] = field(default_factory=list)

    def check(self, nodes: int) -> None:
        """A fake lacks nothing; no step, since tests of a run's order begin with what it touches."""
        assert nodes >= 0, nodes

    def hourly_price(self) -> Decimal:
        return self.price

    def records(self) -> list[NodeRecord]:
        return [
            NodeRecord(id=node_id, provider=self.name, state="fake", in_use=True, is_expired=False, expires_s=None)
            for node_id in sorted(self.alive)
        ]

    def down(self, node_id: str) -> None:
        if node_id not in self.alive:
            raise NoSuchNode(f"no node {node_id!r}; there are: {', '.join(self.alive) or 'none'}")
        self.destroy(self.alive[node_id])

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """The fake's nodes belong to this process: none is ever left over."""
        assert isinstance(dry_run, bool)
        return []

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        node_id = spec.id
        assert deadline.remaining_s() > 0, "a create without any time"
        self.specs.append(spec)
        self.steps.enter("provider.create", node_id)
        if node_id in self.alive:
            raise UsageError(f"node {node_id} exists already")
        folder = self.root / node_id
        folder.mkdir(parents=True)
        host = self.make_host(node_id)
        host.answer_when(
            lambda command: command.argv == ("date", "+%s.%N"), lambda command: Reply(stdout=f"{time.time():.9f}\n")
        )
        node = Node(
            id=node_id,
            provider=self.name,
            site=self.site,
            folder=folder,
            host=host,  # type: ignore[arg-type]
            facts={"emulation": "none", "vcpus": str(spec.vcpus), "memory_mib": str(spec.memory_mib)},
            controller_address=self.controller_address,
            cpu_threads=self.cpu_threads,
        )
        self.alive[node_id] = node
        return node

    def attach(self, node_id: str) -> Node:
        self.steps.enter("provider.attach", node_id)
        if node_id not in self.alive:
            raise NoSuchNode(f"no node {node_id!r}; there are: {', '.join(self.alive) or 'none'}")
        return self.alive[node_id]

    def keep(self, node: Node, until_s: float) -> None:
        self.steps.enter("provider.keep", node.id)
        assert node.id in self.alive, f"{node.id} is to be kept but is gone"
        self.kept[node.id] = until_s

    def destroy(self, node: Node) -> None:
        self.steps.enter("provider.destroy", node.id)
        node.host.close()
        self.alive.pop(node.id, None)

    def leave_behind(self, node_id: str = "some node") -> None:
        """Let every destroy fail as one does that could not remove everything."""
        self.steps.fail("provider.destroy", LeftBehind(f"node {node_id}: processes 4242 would not end"))


MUST_AGREE = {
    "provider": "fake",
    "emulation": "none",
    "cgroup_mode": "v2",
    "cgroup_driver": "systemd",
    "vcpus": "2",
    "memory_class": "4096 MiB",
    "control_plane": "controller",
}


class Inside:
    """A context that may be entered again and again; ``commands`` are those of ``host`` while it was."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.commands: list[Command] = []
        self.times = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.times += 1
        before = len(self.host.commands)
        yield
        self.commands += self.host.commands[before:]


def said_by(cell: Cell) -> dict[str, str]:
    """What the components of a cell say of themselves, as far as a verdict rests on it, by the name of the raw text."""

    def gates(component: str) -> str:
        base = cell.gate("PodLevelResources", component, cell.minor >= 34)
        on = {"PodLevelResources": base}
        if cell.minor >= 37:
            on["PodLevelResourcesFixKubeletQOSClass"] = base
        on |= {gate.name: gate.enabled for gate in cell.gates if gate.component in (None, component)}
        line = 'kubernetes_feature_enabled{{name="{}",stage="BETA"}} {:d}\n'
        return "".join(line.format(name, value) for name, value in sorted(on.items()))

    return {
        "node-facts.txt": f"lab node-facts 1\n== kubelet\nKubernetes {cell.version}\n== end\n",
        "apiserver-version.json": json.dumps({"gitVersion": cell.version}),
        **{f"gates-{component}.txt": gates(component) for component in GATED},
    }


@dataclass(kw_only=True)
class FakeDistro:
    """A distribution whose cluster is made of fake hosts.

    kubectl runs on ``controller``; ``program`` is how its calls start. ``saved`` lists the folders given to save_logs.
    Its components say of themselves what :func:`said_by` gives, but for what is in ``facts_texts``.
    """

    name: str = "upstream"
    steps: Steps = field(default_factory=Steps)
    controller: FakeHost = field(default_factory=lambda: FakeHost("controller"))
    binaries: Mapping[str, Path] = field(default_factory=dict)
    must_agree: Mapping[str, str] = field(default_factory=lambda: dict(MUST_AGREE))
    shown: Mapping[str, str] = field(default_factory=lambda: {"kernel": "7.2.12", "runc": "1.3.6"})
    facts_texts: Mapping[str, str] = field(default_factory=dict)
    own_cpu_s: Callable[[], Mapping[str, float]] = dict
    saved: list[Path] = field(default_factory=list)
    installed: dict[str, Cell] = field(default_factory=dict)

    def check(self, cell: Cell) -> None:
        """A fake takes any cell of its own; no step, as :meth:`FakeProvider.check` is none."""
        assert cell.distro, cell

    def files(self, cell: Cell, site: Site) -> Mapping[str, Path]:
        assert site == FAKE_SITE or site.is_lasting, site
        self.steps.enter("distro.files", cell.name)
        return dict(self.binaries)

    def install(self, node: Node, cell: Cell, deadline: Deadline, ready: Waiting = nullcontext) -> Cluster:
        assert deadline.remaining_s() > 0, "an installation without any time"
        self.steps.enter("distro.install", cell.name)
        with ready():
            pass
        self.installed[node.id] = cell
        return self._cluster(node, cell)

    def attach(self, node: Node, cell: Cell) -> Cluster:
        self.steps.enter("distro.attach", cell.name)
        if self.installed.get(node.id) != cell:
            raise UsageError(f"node {node.id} runs {self.installed.get(node.id)}, not {cell.name}")
        return self._cluster(node, cell)

    def save_logs(self, cluster: Cluster | None, node: Node, folder: Path) -> None:
        assert cluster is None or cluster.node is node
        self.steps.enter("distro.save_logs", node.id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kubelet.log").write_text("a line of the fake kubelet\n")
        self.saved.append(folder)

    def uninstall(self, node: Node) -> None:
        self.steps.enter("distro.uninstall", node.id)
        self.installed.pop(node.id, None)

    def _cluster(self, node: Node, cell: Cell) -> Cluster:
        return Cluster(
            node=node,
            kubectl=Kubectl(host=self.controller, argv=("kubectl",), kubeconfig="/fake/kubeconfig"),
            cell=cell,
            kubelet_unit="lab-kubelet",
            kubelet_url="https://127.0.0.1:10250",
            credentials_folder="/etc/lab",
            must_agree=self.must_agree,
            shown=self.shown,
            facts_texts={**said_by(cell), **self.facts_texts},
            own_cpu_s=self.own_cpu_s,
        )


def kubectl_words(command: Command) -> tuple[str, ...]:
    """Words of a fake cluster's kubectl call after its own flags (``("get", "pods", …)``); () for another command."""
    if command.argv[:2] != ("kubectl", "--kubeconfig=/fake/kubeconfig"):
        return ()
    return tuple(word for word in command.argv[2:] if not word.startswith("--request-timeout="))
