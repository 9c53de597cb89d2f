"""Campaigns on the account in memory: strangers' things that look like ours, and labs that are killed at any moment.

A killed lab does nothing more: whatever it would still ask of the API or write to the disk on its way out is refused.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import processes
from lab.host import Deadline
from lab.journal import JOURNAL, RunJournal
from lab.model import LabError, LeftBehind
from lab.processes import Identity
from lab.providers.digitalocean import names
from lab.providers.digitalocean import provider as provider_module
from lab.providers.digitalocean.names import CloudName
from lab.secrets import Secrets
from tests.cloud_bench import BOOT_S, HOUR_S, START_S, Call, Cloud, Owner
from tests.digitalocean_api import (
    PROMPT,
    Behaviour,
    CloseAfter,
    CloseBefore,
    Delay,
    Effect,
    Error,
    Hang,
    TooMany,
    bad_gateway,
)

IS_CAMPAIGN = os.environ.get("LAB_CAMPAIGN") == "1"
SCHEDULES = 1000 if IS_CAMPAIGN else 150
ACCOUNTS = 10_000 if IS_CAMPAIGN else 400


class Broken(AssertionError):
    """A promise that did not hold."""


def require(truth: object, text: str) -> None:
    if not truth:
        raise Broken(text)


# --- strangers --------------------------------------------------------------------------------------------------------


def confusing(rng: random.Random, mine: CloudName) -> str:
    """A name that is nearly one of ours."""
    text, expiry = str(mine), str(mine.expires_s)
    return rng.choice([
        text.removeprefix("nlab-"), f"my-{text}", f"{text}.example.com", f"{text}0", text[:-1], text.upper(),
        text.replace("nlab-", "nlab"), text.replace("-x", "-"), f"nlab-x{expiry}", f"nlab--x{expiry}",
        f"nlab-a-x0{expiry[1:]}", f"nlab-A-x{expiry}", f"nlab-{mine.node_id}", "nlab", "web-1", "node-lab",
    ])  # fmt: skip


def confusing_tag(rng: random.Random, mine: CloudName) -> str:
    """A tag that is nearly one of ours."""
    expiry = str(mine.expires_s)
    return rng.choice([
        f"{mine.tag}0", mine.tag[:-1], f"my:{mine.tag}", mine.tag.replace("node-lab:", ""), "node-lab", "node-lab:nlab",
        f"{mine.tag}-old", mine.tag.replace("node-lab", "node_lab"), f"node-lab:nlab-x{expiry}", "web",
        f"node-lab:nlab-a-x0{expiry[1:]}",
    ])  # fmt: skip


def add_strangers(rng: random.Random, owner: Owner, mine: CloudName, number: int) -> None:
    """Some of what somebody else may have: right names with wrong tags and the other way round."""
    other = dataclasses.replace(mine, expires_s=mine.expires_s - 1)
    for kind in rng.sample(["droplet", "named", "tagged", "key", "key named", "key tagged", "firewall", "tag"], 3):
        name, tag = confusing(rng, mine), confusing_tag(rng, mine)
        match kind:
            case "droplet":
                owner.droplet(name, *rng.sample([tag, "web", "db"], rng.randint(0, 2)))
            case "named":
                owner.droplet(str(mine), *rng.sample([other.tag, tag], rng.randint(0, 1)))
            case "tagged":
                owner.droplet(f"web-{number}", f"x{mine.tag}")
            case "key":
                owner.key(name, tag)
            case "key named":
                owner.key(str(mine), rng.choice(["", other.tag, f"me {mine.tag}", f"{mine.tag}x"]))
            case "key tagged":
                # Digits of another script, which `\\d` and int() take as well.
                digits = "".join(chr(ord(digit) + 0x630) for digit in str(mine.expires_s))
                unlike = str(mine).replace(str(mine.expires_s), digits)
                owner.key(rng.choice([name, unlike]), mine.tag)
            case "firewall":
                owner.firewall(f"{name}.f{number}", tag)
            case "tag":
                owner.tag(tag)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What is in an account, with all that a removal could change of it."""

    droplets: dict[int, tuple[str, tuple[str, ...]]]
    firewalls: dict[str, tuple[str, tuple[str, ...]]]
    keys: dict[int, str]
    tags: frozenset[str]


def snapshot(cloud: Cloud) -> Snapshot:
    """The whole account."""
    account = cloud.account
    account.inventory()
    there = [droplet for droplet in account.droplets.values() if not droplet.gone and droplet.destroy_action is None]
    return Snapshot(
        droplets={droplet.id: (droplet.name, tuple(droplet.tags)) for droplet in there},
        firewalls={wall.id: (wall.name, tuple(wall.tags)) for wall in account.firewalls.values()},
        keys={key.id: key.name for key in account.keys.values()},
        tags=frozenset(account.tags),
    )


def random_name(rng: random.Random, expires_s: float) -> CloudName:
    node = rng.choice(["upstream-v1.36.3", "k3s-v1.34.12", "a", "x1", "upstream-v1.36.3-x1700000000"])
    return CloudName(node_id=f"{node}-{rng.randrange(16**4):04x}", expires_s=int(expires_s))


def collect_in_random_account(cloud: Cloud, rng: random.Random) -> tuple[int, int]:
    """One generated account, and what `lab gc` makes of it: (resources of strangers and of living labs, removed)."""
    owner = Owner(cloud.account)
    for number in range(rng.randint(1, 3)):
        name = random_name(rng, START_S + rng.choice([-900_000, -HOUR_S, -1]))
        add_strangers(rng, owner, name, number)
    for _ in range(rng.randint(0, 1)):
        name = random_name(rng, START_S + rng.choice([1, HOUR_S, 900_000]))
        owner.lab(str(name), name.tag)
    strangers = snapshot(cloud)
    for _ in range(rng.randint(0, 2)):
        name = random_name(rng, START_S - rng.choice([0, 1, HOUR_S, 90_000]))
        parts: list[Callable[[], object]] = [
            lambda name=name: owner.droplet(str(name), name.tag),  # type: ignore[misc]
            lambda name=name: owner.firewall(str(name), name.tag),  # type: ignore[misc]
            lambda name=name: owner.key(str(name), name.tag),  # type: ignore[misc]
            lambda name=name: owner.tag(name.tag),  # type: ignore[misc]
        ]
        for part in rng.sample(parts, rng.randint(1, 4)):
            part()
    before = snapshot(cloud)
    cloud.clock.advance(0.5)
    cloud.provider().collect_garbage(dry_run=True)
    require(snapshot(cloud) == before, "a dry run changed something")
    cloud.provider().collect_garbage(dry_run=False)
    after = snapshot(cloud)
    require(after == strangers, f"left are {after}, not {strangers}")
    count = sum(len(getattr(strangers, field.name)) for field in dataclasses.fields(strangers))
    return count, sum(len(getattr(before, field.name)) for field in dataclasses.fields(before)) - count


def collect_in_many_accounts(folder: Path, count: int) -> str:
    """A sentence with the counts; Broken when something of somebody else's is gone, or something of ours stays."""
    kept = removed = 0
    for seed in range(count):
        rng = random.Random(f"account {seed}")
        cloud = Cloud(folder, PROMPT if rng.random() < 0.7 else Behaviour(), droplet_limit=100)
        try:
            more = collect_in_random_account(cloud, rng)
        except Broken as error:
            raise Broken(f"account {seed}: {error}") from error
        kept, removed = kept + more[0], removed + more[1]
    return f"{count} accounts: {removed} expired resources of the lab removed, 0 of {kept} others"


# --- labs that are killed ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """kill -9, from the inside."""


class Process:
    """One run of the lab. At its point ``kill_at`` it dies: before or after a request or a write.

    Given ``after``, it dies soon after the first create of that kind: the moments in which most can be lost.
    """

    def __init__(self, number: int, rng: random.Random, kill_at: int | None, after: str | None = None) -> None:
        self.identity = Identity(pid=1, start_ticks=-number)
        self.rng = rng
        self.kill_at = kill_at
        self.after = after
        self.points = 0
        self.seen: Counter[str] = Counter()
        self.is_dead = False

    def answered(self, call: Call) -> None:
        """The point after a request."""
        if self.after is not None and call.method == "POST" and call.path.endswith(self.after):
            self.kill_at, self.after = self.points + self.rng.randint(1, 7), None
        self.point("answer")

    def point(self, where: str, on_death: Callable[[], object] | None = None) -> None:
        if not self.is_dead:
            self.points += 1
            self.seen[where] += 1
            if self.points != self.kill_at:
                return
            self.is_dead = True
            if on_death is not None and self.rng.random() < 0.5:
                on_death()
        raise Killed


class Machine:
    """Who runs on the controller at the moment, and what it may write.

    Each write of the provider and of a run's journal and results is a point at which a process can die, before and
    after it; a file, a journal line or the removal of a folder may also be left half done.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.running: Process | None = None
        self.alive: set[int] = set()
        monkeypatch.setattr(processes, "marked", lambda folder: [])
        monkeypatch.setattr(processes, "myself", self._myself)
        monkeypatch.setattr(Identity, "is_alive", lambda identity: identity.start_ticks in self.alive)
        for name in ("write_text", "replace", "rename", "mkdir", "touch", "unlink"):
            monkeypatch.setattr(Path, name, self._guarded(getattr(Path, name), name))
        for name in ("event", "finish"):
            monkeypatch.setattr(RunJournal, name, self._guarded(getattr(RunJournal, name), name))
        # Those of results. What was written outlives its process without fsync.
        monkeypatch.setattr(os, "replace", self._guarded(os.replace, "os.replace"))
        monkeypatch.setattr(os, "fsync", self._guarded(lambda descriptor: None, "fsync"))
        monkeypatch.setattr(shutil, "rmtree", self._guarded(shutil.rmtree, "rmtree"))

    def forget_secrets(self) -> None:
        """The registry of this process sorts all that it knows with each new key: thousands of them take minutes."""
        self._monkeypatch.setattr(provider_module, "SECRETS", Secrets())

    def _myself(self) -> Identity:
        assert self.running is not None
        return self.running.identity

    def _guarded(self, write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def halfway(target: Any, *given: Any) -> None:
            if name == "write_text":
                write(target, given[0][: len(given[0]) // 2])
            if name == "event":
                with target.folder.joinpath(JOURNAL).open("ab") as file:
                    file.write(b'{"kind": "cre')
            if name == "rmtree":
                for path in sorted(target.iterdir())[:1]:
                    path.unlink()

        def guarded(*given: Any, **named: Any) -> Any:
            process = self.running
            if process is None:
                return write(*given, **named)
            process.point(f"before {name}", lambda: halfway(*given))
            try:
                return write(*given, **named)
            finally:
                process.point(f"after {name}")

        return guarded

    @contextmanager
    def runs(self, cloud: Cloud, process: Process, faults: Callable[[int, str, str], Effect | None]) -> Iterator[None]:
        """Inside, what is done is done by this process."""
        outer = self.running, cloud.wire.plan, cloud.wire.on_change

        def plan(number: int, method: str, target: str) -> Effect | None:
            process.point("request")
            return faults(number, method, target)

        self.running, cloud.wire.plan = process, plan
        watch = cloud.wire.on_change

        def answered() -> None:
            watch()
            process.answered(cloud.wire.calls[-1])

        cloud.wire.on_change = answered
        self.alive.add(process.identity.start_ticks)
        try:
            yield
        finally:
            self.running, cloud.wire.plan, cloud.wire.on_change = outer
            self.alive.discard(process.identity.start_ticks)


EFFECTS: tuple[Callable[[], Effect], ...] = (
    CloseBefore, CloseAfter, bad_gateway, TooMany, lambda: Error(status=500), lambda: bad_gateway(handled=True),
    lambda: Hang(handled=True), lambda: Hang(handled=False), lambda: TooMany(retry_after_s=3),
    lambda: Error(status=403, message="no"),
)  # fmt: skip

# What a DELETE alone may be told: something else is being done with the object.
BUSY = (Error(status=422, message="Droplet already has a pending event."), Error(status=409, message="busy"))


def random_faults(rng: random.Random) -> Callable[[int, str, str], Effect | None]:
    share = rng.choice([0.0, 0.0, 0.03, 0.1, 0.3])
    # A network that stays away for a while.
    away = rng.randrange(120) if rng.random() < 0.1 else 10**9
    first: list[int] = []

    def plan(number: int, method: str, target: str) -> Effect | None:
        first.append(number)
        if away <= number - first[0] < away + 40:
            return CloseBefore()
        if method == "DELETE" and rng.random() < share:
            return rng.choice(BUSY)
        return rng.choice(EFFECTS)() if rng.random() < share else None

    return plan


def random_behaviour(rng: random.Random) -> Behaviour:
    def lag(most_s: float, most_polls: int = 3) -> Delay:
        return Delay(polls=rng.randint(0, most_polls), seconds=rng.uniform(0, most_s))

    if rng.random() < 0.2:
        return PROMPT
    return Behaviour(
        active_after=lag(60),
        addressed_after=lag(10),
        gone_after=lag(30),
        firewall_applied_after=lag(40),
        # Lists by time alone: nobody looks while a lab is dead, and they know its droplets all the same in the end.
        listed_after=lag(25, 0),
        unlisted_after=lag(25, 0),
        tag_listed_after=lag(25, 0),
        tag_unlisted_after=lag(25, 0),
        delete_while_pending=rng.choice(("refused", "refused", "ignored")),
    )


MOST_POINTS = 130


class Schedule:
    """Several labs one after the other on one account, each killed or not; then time, and `lab gc`."""

    def __init__(self, folder: Path, machine: Machine, seed: int) -> None:
        self.rng = random.Random(f"schedule {seed}")
        self.machine = machine
        machine.forget_secrets()
        self.cloud = Cloud(folder, random_behaviour(self.rng), droplet_limit=50)
        self.counts: Counter[str] = Counter()
        self.processes = 0
        owner = Owner(self.cloud.account)
        add_strangers(self.rng, owner, random_name(self.rng, START_S - HOUR_S), 0)
        neighbour = random_name(self.rng, START_S + 900_000)
        owner.lab(str(neighbour), neighbour.tag)
        self.others = snapshot(self.cloud)
        self.cloud.wire.on_change = self._look

    def _look(self) -> None:
        """After every request: nothing twice, and nothing of the others touched."""
        seen = snapshot(self.cloud)
        for kind in ("droplets", "firewalls"):
            mine = [name for name, _ in getattr(seen, kind).values() if names.parse(name)]
            require(len(mine) == len(set(mine)), f"two {kind} of one name: {mine}")
            require(getattr(self.others, kind).items() <= getattr(seen, kind).items(), f"{kind} of others changed")
        done = [call for call in self.cloud.wire.calls if call.method == "POST" and call.status in (201, 202)]
        ordered = Counter((call.target, call.body["name"]) for call in done)
        require(max(ordered.values(), default=0) <= 1, f"ordered twice: {ordered.most_common(1)}")
        require(self.others.keys.items() <= seen.keys.items(), "keys of others changed")
        require(self.others.tags <= seen.tags, "tags of others changed")

    def _process(self, kill: float) -> Process:
        self.processes += 1
        if self.rng.random() >= kill:
            return Process(self.processes, self.rng, None)
        kind = self.rng.choice([None, None, None, "tags", "firewalls", "keys", "droplets", "droplets"])
        return Process(self.processes, self.rng, self.rng.randint(1, MOST_POINTS) if kind is None else None, kind)

    def _do(self, action: Callable[[], object], *, kill: float, faults: Callable[..., Effect | None]) -> str:
        return self.do(action, self._process(kill), faults)

    def do(self, action: Callable[[], object], process: Process, faults: Callable[..., Effect | None]) -> str:
        """How the action ended, done by this process: ``done``, ``killed``, ``left behind`` or ``failed``."""
        try:
            with self.machine.runs(self.cloud, process, faults):
                action()
        except Killed:
            self.counts["killed"] += 1
            return "killed"
        except LeftBehind:
            return "left behind"
        except LabError:
            return "failed"
        return "done"

    def live(self, number: int) -> None:
        """One lab: a node, then keep or remove it."""
        spec = self.cloud.spec(run_id=f"r{number}", hours=self.rng.choice([20.0, 40.0]))
        name = CloudName(node_id=spec.id, expires_s=int(spec.expires_s))
        keeps = self.rng.random() < 0.2

        def life() -> None:
            provider = self.cloud.provider()
            node = provider.create(spec, Deadline.after(BOOT_S, self.cloud.clock))
            if keeps:
                provider.keep(node, self.cloud.clock() + HOUR_S)
            else:
                provider.destroy(node)

        before = snapshot(self.cloud)
        ended = self._do(life, kill=0.8, faults=random_faults(self.rng))
        self.counts[f"lab {ended}"] += 1
        after = snapshot(self.cloud)
        mine = [str(name) in {held for held, _ in after.droplets.values()}, str(name) in after.keys.values()]
        if ended == "failed" or (ended == "done" and not keeps):
            require(after == before, f"a lab that {ended} left {after}, there was {before}")
        if ended == "done" and keeps:
            require(all(mine), "a kept node is not there")
        if ended == "killed" and self.rng.random() < 0.6:
            ended = self._do(lambda: self.cloud.provider().down(spec.id), kill=0.0, faults=lambda *_: None)
            self.counts["down"] += 1
            self.cloud.clock.advance(60)
            after = snapshot(self.cloud)
            require(after == before, f"down {ended} and left {after}, there was {before}")

    def collect(self, *, kill: float, faults: Callable[..., Effect | None]) -> str:
        return self._do(lambda: self.cloud.provider().collect_garbage(dry_run=False), kill=kill, faults=faults)

    def run(self) -> Counter[str]:
        for number in range(self.rng.randint(1, 3)):
            self.live(number)
            if self.rng.random() < 0.3:
                before = snapshot(self.cloud)
                self.collect(kill=0.2, faults=random_faults(self.rng))
                require(snapshot(self.cloud) == before, "gc removed something before its time")
        self.cloud.clock.advance(48 * HOUR_S)
        for _ in range(self.rng.randint(0, 2)):
            self.counts["gc disturbed"] += 1
            self.collect(kill=0.6, faults=random_faults(self.rng))
        self.finish()
        self.counts["droplets made"] += len(self.cloud.account.machines.started) - len(self.others.droplets)  # type: ignore[attr-defined]
        return self.counts

    def finish(self) -> None:
        """The last `lab gc`, undisturbed and after the time of all labs: nothing of them is left."""
        ended = self.collect(kill=0.0, faults=lambda *_: None)
        require(ended == "done", f"the last gc {ended}")
        self.cloud.clock.advance(HOUR_S)
        after = snapshot(self.cloud)
        require(after == self.others, f"in the account are {after}, not {self.others}")
        require(self.cloud.account.inventory().fading == {}, "something fades for ever")
        left = [name for name in self.cloud.folders() if not name.startswith(".")]
        require(left == [], f"folders {left} stay")


def run_schedules(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, first: int = 0) -> str:
    """A sentence with the counts; Broken names the schedule that broke a promise."""
    machine = Machine(monkeypatch)
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            total += Schedule(folder / f"{seed}", machine, seed).run()
        except Broken as error:
            raise Broken(f"schedule {seed}: {error}") from error
    told = ", ".join(f"{number} {what}" for what, number in sorted(total.items()))
    return f"{count} schedules: 0 resources left, 0 duplicates, 0 of others touched ({told})"
