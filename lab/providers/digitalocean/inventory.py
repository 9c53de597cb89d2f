"""What of ours is in the account, and how it goes: droplet until the API has forgotten it, then key, firewall, tag.

The account's own lists are the truth. They lag behind creates and deletes, so an id that is known is trusted more than
a list that does not show it. Errors of the removal are collected; what stays is named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lab.host import Deadline
from lab.model import LabError, LeftBehind, NodeError
from lab.providers.digitalocean import names
from lab.providers.digitalocean.api import Api, ApiBusy, ApiNotFound
from lab.providers.digitalocean.names import CloudName

GONE_S = 300.0
"""How long a droplet may take to go; one with an action pending refuses or ignores deletes until that has ended."""

BUSY_S = 60.0
"""How long a key, a firewall or a tag is asked to go that is refused for the moment; no action on them is known."""

POLL_S = 2.0


@dataclass(slots=True, kw_only=True)
class Holdings:
    """Everything in the account that carries one name. ``state`` is the droplet's, empty without one."""

    name: CloudName
    droplets: set[int] = field(default_factory=set)
    keys: set[int] = field(default_factory=set)
    firewalls: set[str] = field(default_factory=set)
    has_tag: bool = False
    state: str = ""

    def is_empty(self) -> bool:
        """Whether nothing is there."""
        return not (self.droplets or self.keys or self.firewalls or self.has_tag)

    def shown(self) -> str:
        """``node (droplet 1, key 2, firewall 3, tag)``."""
        parts = [f"droplet {number}" for number in sorted(self.droplets)]
        parts += [f"key {number}" for number in sorted(self.keys)]
        parts += [f"firewall {number}" for number in sorted(self.firewalls)]
        parts += [f"tag {self.name.tag}"] if self.has_tag else []
        return f"{self.name.node_id} ({', '.join(parts)})"


def read(api: Api) -> dict[CloudName, Holdings]:
    """All of ours in the account, by name. Whatever does not carry our name and our tag together is not ours."""
    found: dict[CloudName, Holdings] = {}

    def entry(text: str, marks: Iterable[str]) -> Holdings | None:
        name = names.parse(text)
        if name is None or name.tag not in marks:
            return None
        return found.setdefault(name, Holdings(name=name))

    for droplet in api.droplets():
        if (mine := entry(droplet.name, droplet.tags)) is not None:
            mine.droplets.add(droplet.id)
            mine.state = f"{droplet.status} {droplet.public_ip or ''}".strip()
    for firewall in api.firewalls():
        if (mine := entry(firewall.name, firewall.tags)) is not None:
            mine.firewalls.add(firewall.id)
    account_keys = api.keys()
    for key in account_keys:
        if (mine := entry(key.name, key.public_key.split()[2:3])) is not None:
            mine.keys.add(key.id)
    tags = {tag.name for tag in api.tags()}
    for mine in found.values():
        mine.has_tag = mine.name.tag in tags
    return found


def write_note(folder: Path, known: Holdings) -> None:
    """Write down beside a node's keys what of it is in the account."""
    data = {
        "name": str(known.name),
        "droplets": sorted(known.droplets),
        "keys": sorted(known.keys),
        "firewalls": sorted(known.firewalls),
    }
    temporary = folder / "cloud.json.part"
    temporary.write_text(json.dumps(data) + "\n")
    temporary.replace(folder / "cloud.json")


def read_note(folder: Path) -> Holdings | None:
    """What was written down at creation; None when that was not even begun."""
    try:
        data = json.loads((folder / "cloud.json").read_text())
        name = names.parse(data["name"])
        if name is None:
            return None
        return Holdings(
            name=name,
            droplets=set(data["droplets"]),
            keys=set(data["keys"]),
            firewalls=set(data["firewalls"]),
            has_tag=True,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def droplets_of(api: Api, name: CloudName) -> set[int]:
    """Droplets of exactly this name and tag."""
    return {droplet.id for droplet in api.droplets(name.tag) if names.parse(droplet.name) == name}


def keys_of(api: Api, name: CloudName) -> set[int]:
    """Keys of exactly this name, with the tag as comment."""
    listed = api.keys()
    return {key.id for key in listed if names.parse(key.name) == name and key.public_key.split()[2:3] == [name.tag]}


def firewalls_of(api: Api, name: CloudName) -> set[str]:
    """Firewalls of exactly this name on this tag."""
    return {
        firewall.id for firewall in api.firewalls() if names.parse(firewall.name) == name and name.tag in firewall.tags
    }


def lone_tags(api: Api, found: Iterable[CloudName]) -> list[str]:
    """Tags of ours that nothing carries any more, whoever it belongs to: a deleted tag is gone from all that had it."""
    carried = {name.tag for name in found}
    lone = {tag.name for tag in api.tags() if names.expiry_of_tag(tag.name) is not None and not tag.resources}
    if lone - carried:
        # The count of a tag's resources leaves firewalls out.
        carried |= {tag for firewall in api.firewalls() for tag in firewall.tags}
    return sorted(lone - carried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remover:
    """Removes what carries a name. ``progress`` is told what is waited for; ``clock`` is in monotonic seconds."""

    api: Api
    progress: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def remove(self, known: Holdings, *, settle_s: float = 0.0) -> None:
        """Until it is gone. LeftBehind names what stays and why.

        ``known`` are ids that are sure; the lists are asked as well. ``settle_s`` is how long a create with an unknown
        outcome may still show up: the lists are watched that long.
        """
        problems: list[str] = []
        left = replace(known, droplets=set(known.droplets), keys=set(known.keys), firewalls=set(known.firewalls))
        left.has_tag = True
        is_gone = self._try(problems, lambda: self._droplets(left, settle_s))
        self._try(problems, lambda: self._keys(left))
        if is_gone:
            # A droplet that may be there still must not be open.
            self._try(problems, lambda: self._firewalls(left))
        if not problems:
            self._try(problems, lambda: self._tag(left.name))
        if problems:
            raise LeftBehind(
                f"{left.shown()} may be left in the account: {'; '.join(problems)}. "
                "`lab gc` removes it once its time is over, `lab down` at once"
            )

    @staticmethod
    def _try(problems: list[str], step: Callable[[], None]) -> bool:
        try:
            step()
        except LabError as error:
            problems.append(str(error))
            return False
        return True

    def _droplets(self, left: Holdings, settle_s: float) -> None:
        """Delete, again and again, until neither id nor list shows one; ``left.droplets`` keeps those that stay."""
        deadline = Deadline.after(GONE_S, self.clock)
        settled = Deadline.after(settle_s, self.clock)
        refusals: dict[int, str] = {}
        while True:
            # First what is known: when a person waits for the end, the deletes are out before any list is read.
            self._ask_to_go(left.droplets, refusals)
            found = droplets_of(self.api, left.name) - left.droplets
            left.droplets |= found
            self._ask_to_go(found, refusals)
            states = {number: self._state(number) for number in sorted(left.droplets)}
            left.droplets = {number for number, state in states.items() if state is not None}
            # A list may go on showing for a while what is gone already.
            if not left.droplets and settled.remaining_s() <= 0:
                return
            if left.droplets and deadline.remaining_s() <= 0:
                told = [
                    f"droplet {number} is still there after {GONE_S:g} s of deleting, with status {states[number]}"
                    + (f"; its DELETE was last refused: {refusals[number]}" if number in refusals else "")
                    for number in sorted(left.droplets)
                ]
                raise NodeError("; ".join(told))
            self.sleep(POLL_S)

    def _ask_to_go(self, droplets: Iterable[int], refusals: dict[int, str]) -> None:
        """One DELETE for each. ``refusals`` keeps what those were told that cannot go yet, and of no others."""
        for number in sorted(droplets):
            try:
                self.api.delete_droplet(number)
                refusals.pop(number, None)
            except ApiBusy as error:
                if number not in refusals:
                    self.progress(f"droplet {number} cannot be deleted yet, trying for up to {GONE_S:g} s: {error}")
                refusals[number] = str(error)

    def _state(self, number: int) -> str | None:
        """The droplet's status; None once it is gone."""
        try:
            return self.api.droplet(number).status
        except ApiNotFound:
            return None

    def _keys(self, left: Holdings) -> None:
        # The list of keys may be asked for ten times a minute only.
        left.keys = left.keys or keys_of(self.api, left.name)
        for number in sorted(left.keys):
            self._until_taken(partial(self.api.delete_key, number))
            left.keys.discard(number)

    def _firewalls(self, left: Holdings) -> None:
        left.firewalls = left.firewalls or firewalls_of(self.api, left.name)
        for number in sorted(left.firewalls):
            self._until_taken(partial(self.api.delete_firewall, number))
            left.firewalls.discard(number)

    def _tag(self, name: CloudName) -> None:
        strangers = self._carriers(name.tag, but_for=name)
        if strangers:
            raise NodeError(f"tag {name.tag} is carried by {', '.join(strangers)}, which is not ours")
        self._until_taken(partial(self.api.delete_tag, name.tag))

    def _carriers(self, tag: str, *, but_for: CloudName | None = None) -> list[str]:
        """Names of the droplets with this tag that are there: a list may go on showing what is gone already.

        Those of ``but_for`` are left out, and not asked for one by one.
        """
        listed = [one for one in self.api.droplets(tag) if but_for is None or names.parse(one.name) != but_for]
        return [droplet.name for droplet in listed if self._state(droplet.id) is not None]

    def collect_tags(self, found: Mapping[CloudName, Holdings], now_s: float, *, dry_run: bool) -> list[str]:
        """Delete our tags whose time is over and which nothing of ``found`` and no droplet carries; what was deleted.

        NodeError when the API goes on refusing that.
        """
        removed = []
        for tag in lone_tags(self.api, found):
            expires = names.expiry_of_tag(tag)
            if expires is not None and expires <= now_s and not self._carriers(tag):
                if not dry_run:
                    self._until_taken(partial(self.api.delete_tag, tag))
                removed.append(f"tag {tag}")
        return removed

    def _until_taken(self, delete: Callable[[], None]) -> None:
        """Ask until it is not refused for the moment any more; the last refusal is raised once ``BUSY_S`` are over."""
        deadline = Deadline.after(BUSY_S, self.clock)
        while True:
            try:
                return delete()
            except ApiBusy:
                if deadline.remaining_s() <= 0:
                    raise
            self.sleep(POLL_S)
