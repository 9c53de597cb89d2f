"""Throw-away droplets: firewalled before they exist, reached with a pinned host key, gone when nobody needs them.

Order: tag, firewall on the tag, key, droplet, so that the droplet is never open. No create is repeated: one whose
outcome is unknown is looked for, and cleaned up after. What was made is written down beside the node's keys, but the
account's own lists are the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from lab import interrupts
from lab.config import NodeOptions
from lab.host import Deadline, Sleep, wait_until
from lab.model import LabError, LeftBehind, NodeError, NoSuchNode, UsageError, WaitTimeout
from lab.providers import folders
from lab.providers.contract import Node, NodeRecord, NodeSpec, Site
from lab.providers.digitalocean import inventory, names
from lab.providers.digitalocean.access import Access
from lab.providers.digitalocean.account import Catalogue
from lab.providers.digitalocean.api import Api, ApiAmbiguous, ApiNotFound, ApiRefused, ApiUnavailable
from lab.providers.digitalocean.client import END_POINT
from lab.providers.digitalocean.inventory import Holdings, Remover
from lab.providers.digitalocean.names import CloudName
from lab.providers.digitalocean.user_data import cloud_config
from lab.secrets import SECRETS
from lab.ssh import SshHost
from lab.ssh_keys import make_key_pair

SETTLE_S = 45.0
"""How long a create whose outcome is unknown is looked for; lists lag behind by seconds."""

POLL_S = 3.0
_Id = TypeVar("_Id", int, str)


class _NeverListed(NodeError):
    """A create with an unknown outcome was looked for as long as lists may lag, and did not show up."""


class DigitalOceanProvider:
    """Makes droplets in the account of ``token``. Without ``end_point`` the real API is meant."""

    name = "digitalocean"
    site = Site(reaches_controller=False, has_runtime=False, is_lasting=False)

    def __init__(
        self,
        cache: Path,
        progress: Callable[[str], None],
        *,
        token: str,
        options: NodeOptions,
        end_point: str | None = None,
        address_url: str | None = None,
        access: Access | None = None,
        api: Api | None = None,
        sleep: Sleep = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        SECRETS.add(token)
        self._cache = cache
        self._progress = progress
        self._token = token
        self._options = options
        self._end_point = end_point or END_POINT
        self._address_url = address_url
        self._access = access or Access(progress=progress)
        self._made_api = api
        self._sleep, self._clock, self._now = sleep, clock, now
        self._catalogue: Catalogue | None = None

    @property
    def _api(self) -> Api:
        if self._made_api is None:
            if not self._token:
                raise UsageError(
                    "no token for DigitalOcean: set DIGITALOCEAN_TOKEN (scopes: see README.md), or use --provider qemu"
                )
            self._made_api = Api(self._token, self._end_point, progress=self._progress)
        return self._made_api

    def _prices(self) -> Catalogue:
        if self._catalogue is None:
            self._catalogue = Catalogue(self._api, self._options, self._address_url, self._progress)
        return self._catalogue

    def check(self, nodes: int) -> None:
        """See :class:`lab.providers.contract.Provider`: account, limit, catalogue, scopes to read, own address."""
        if nodes:
            self._prices().check()

    def hourly_price(self) -> Decimal:
        """See :class:`lab.providers.contract.Provider`; the API's own figure for the size."""
        return self._prices().size().price_hourly

    def create(self, spec: NodeSpec, deadline: Deadline) -> Node:
        """See :class:`lab.providers.contract.Provider`."""
        self._prices().check()
        name = CloudName(node_id=spec.id, expires_s=int(spec.expires_s))
        if names.parse(str(name)) != name:
            raise UsageError(f"{spec.id!r} is no name for a droplet: small letters, digits, dots and dashes only")
        place = folders.make(self._cache, spec.id, spec.run_id, self.name)
        known = Holdings(name=name)
        unsure: list[str] = []
        try:
            return self._make(place, known, unsure, deadline)
        except BaseException as error:
            interrupts.leaving = True
            failed = error

            def clean_up() -> None:
                self._clean_up(known, unsure, failed)
                folders.remove(place)

            interrupts.surely(f"removing {known.shown()}", clean_up)
            raise

    def _clean_up(self, known: Holdings, unsure: list[str], error: BaseException) -> None:
        """Remove what a failed create made; LeftBehind also says what had failed."""
        refused = isinstance(error, ApiRefused | ApiUnavailable)
        if refused and known.is_empty():
            return
        # An interrupted request may have arrived: what it made shows up in the lists a little later.
        lost = bool(unsure) and not refused and not isinstance(error, _NeverListed | UsageError)
        if lost:
            self._progress(f"whether the {unsure[0]} was made is not known; looking for it for {SETTLE_S:g} s")
        try:
            self._remove(known, settle_s=SETTLE_S if lost else 0.0)
        except LeftBehind as left:
            raise LeftBehind(f"{left}\nbefore that: {str(error) or type(error).__name__}") from error

    def _make(self, place: folders.NodeFolder, known: Holdings, unsure: list[str], deadline: Deadline) -> Node:
        folder, name, options = place.folder, known.name, self._options
        port = options.ssh_port or 22
        host_private, host_public = make_key_pair(name.tag)
        private, public = make_key_pair(name.tag)
        identity = folder / "id_ed25519"
        identity.touch(mode=0o600)
        identity.write_text(private)
        inventory.write_note(folder, known)

        unsure.append("tag")
        self._api.create_tag(name.tag)
        known.has_tag = True
        unsure.clear()
        allow_from = self._prices().allow_from()
        unsure[:] = ["firewall"]
        firewall = self._once(
            "firewall",
            lambda: self._api.create_firewall(name=str(name), tag=name.tag, ssh_port=port, allow_from=allow_from).id,
            lambda: inventory.firewalls_of(self._api, name),
        )
        known.firewalls.add(firewall)
        inventory.write_note(folder, known)
        unsure[:] = ["key"]
        key = self._once(
            "key",
            lambda: self._api.create_key(str(name), public.strip()).id,
            lambda: inventory.keys_of(self._api, name),
        )
        known.keys.add(key)
        inventory.write_note(folder, known)
        user_data = cloud_config(host_private=host_private, host_public=host_public, ssh_port=port)
        unsure[:] = ["droplet"]
        droplet = self._once(
            "droplet",
            lambda: self._api.create_droplet(
                name=str(name),
                region=options.region,
                size=options.size,
                image=options.image,
                key_ids=[key],
                tags=[name.tag],
                user_data=user_data,
            ),
            lambda: inventory.droplets_of(self._api, name),
        )
        known.droplets.add(droplet)
        unsure.clear()
        inventory.write_note(folder, known)
        self._progress(f"droplet {droplet} ({options.size}, {options.region}) is being made, expires {name.expiry}")
        address = self._wait_active(droplet, deadline)
        self._wait_firewall(firewall, deadline)
        host = self._access.connect(
            name=place.id, address=address, port=port, host_public=host_public, identity=identity, deadline=deadline
        )
        try:
            return self._prove(place, host, droplet)
        except BaseException:
            host.close()
            raise

    def _prove(self, place: folders.NodeFolder, host: SshHost, droplet: int) -> Node:
        """The node behind ``host``, which stays connected, once it is proved to be closed to others."""
        self._access.prove_closed(host)
        facts = {
            "emulation": self._access.virtualization(host),
            "vcpus": str(self._prices().size().vcpus),
            "memory_mib": str(self._prices().size().memory_mib),
            "image": self._options.image,
            "region": self._options.region,
            "droplet": str(droplet),
        }
        folders.write_node(place.folder, host.address, facts)
        return replace(self._node(place), host=host)

    def _once(self, what: str, make: Callable[[], _Id], find: Callable[[], set[_Id]]) -> _Id:
        """Ask once. When it is not known whether that made something, look for it; never ask again."""
        try:
            return make()
        except ApiAmbiguous as error:
            self._progress(f"the answer to creating the {what} was lost; looking for it")
            last = error

        def probe() -> tuple[_Id | None, str]:
            found = sorted(find())
            return (found[0] if found else None), "it is not listed"

        deadline = Deadline.after(SETTLE_S, self._clock)
        try:
            return wait_until(f"the {what} to be listed", probe, deadline, interval_s=POLL_S, sleep=self._sleep)
        except NodeError as error:
            kind = _NeverListed if isinstance(error, WaitTimeout) else NodeError
            raise kind(f"{last}; {error}. Run again: nothing is made twice") from error

    def _wait_active(self, droplet: int, deadline: Deadline) -> str:
        """The droplet's public address. NodeError when it is not the machine that was ordered."""

        listed = Deadline.after(SETTLE_S, self._clock)

        def probe() -> tuple[str | None, str]:
            try:
                found = self._api.droplet(droplet)
            except ApiNotFound:
                # It was accepted a moment ago; an answer may lag as lists do.
                if listed.remaining_s() > 0:
                    return None, "not there yet"
                raise
            if found.status != "active" or found.public_ip is None:
                return None, f"status {found.status}, address {found.public_ip}"
            made = (found.size, found.region, found.image)
            # An image that was ordered by its number may have another name.
            image = found.image if self._options.image.isdecimal() else self._options.image
            wanted = (self._options.size, self._options.region, image)
            if made != wanted:
                raise NodeError(f"droplet {droplet} is {made}, ordered was {wanted} (size, region, image)")
            return found.public_ip, ""

        return wait_until(f"droplet {droplet} to be active", probe, deadline, interval_s=POLL_S, sleep=self._sleep)

    def _wait_firewall(self, firewall: str, deadline: Deadline) -> None:
        def probe() -> tuple[bool | None, str]:
            found = self._api.firewall(firewall)
            if found.status == "failed":
                raise NodeError(f"firewall {firewall} could not be applied")
            done = found.status == "succeeded" and not found.pending
            return (True if done else None), f"status {found.status}, {found.pending} changes pending"

        wait_until(f"firewall {firewall} to be applied", probe, deadline, interval_s=POLL_S, sleep=self._sleep)

    def _node(self, place: folders.NodeFolder) -> Node:
        host, facts = folders.read_node(place)
        return Node(
            id=place.id,
            provider=self.name,
            site=self.site,
            folder=place.folder,
            host=host,
            facts=facts,
            controller_address=None,
        )

    def attach(self, node_id: str) -> Node:
        """See :class:`lab.providers.contract.Provider`; the droplet now belongs to this process."""
        node = self._node(folders.adopt(folders.find(self._cache, node_id, self.name)))
        node.host.connect()
        return node

    def keep(self, node: Node, until_s: float) -> None:
        """See :class:`lab.providers.contract.Provider`; never beyond the expiry in the droplet's name."""
        node.host.close()
        place = folders.find(self._cache, node.id, self.name)
        known = inventory.read_note(place.folder)
        folders.keep(place, min(until_s, float(known.name.expires_s)) if known else until_s)

    def destroy(self, node: Node) -> None:
        """See :class:`lab.providers.contract.Provider`."""
        node.host.close()
        try:
            place = folders.find(self._cache, node.id, self.name)
        except NoSuchNode:
            return
        self.down(place.id)

    def _remove(self, known: Holdings, *, settle_s: float = 0.0) -> None:
        self._remover().remove(known, settle_s=settle_s)

    def _remover(self) -> Remover:
        return Remover(api=self._api, progress=self._progress, sleep=self._sleep, clock=self._clock)

    def records(self) -> list[NodeRecord]:
        """See :class:`lab.providers.contract.Provider`: what the account shows, and folders it knows nothing of."""
        found = inventory.read(self._api)
        places = {place.id: place for place in folders.read(self._cache, self.name)}
        records = [self._record(mine, places.get(name.node_id)) for name, mine in sorted(found.items())]
        shown = {record.id for record in records}
        return records + [folders.record(place) for node_id, place in places.items() if node_id not in shown]

    def _record(self, mine: Holdings, place: folders.NodeFolder | None) -> NodeRecord:
        left_s = mine.name.expires_s - self._now()
        in_use = place.is_in_use(self._now()) if place is not None else left_s > 0
        until = f"expires in {left_s / 3600:.1f} h" if left_s > 0 else "expired (lab gc removes it)"
        return NodeRecord(
            id=mine.name.node_id,
            provider=self.name,
            state=f"{mine.state or 'no droplet'}, {until}",
            in_use=in_use,
            is_expired=left_s <= 0,
            expires_s=float(mine.name.expires_s),
        )

    def down(self, node_id: str) -> None:
        """See :class:`lab.providers.contract.Provider`: what was written down here, and what the account shows."""
        place = {place.id: place for place in folders.read(self._cache, self.name)}.get(node_id)
        noted = None if place is None else inventory.read_note(place.folder)
        if noted is not None:
            self._remove(noted, settle_s=self._settle_s(noted))
        listed = [mine for name, mine in inventory.read(self._api).items() if name.node_id == node_id]
        for mine in listed:
            self._remove(mine, settle_s=0.0 if noted is not None else self._settle_s(mine))
        if place is not None:
            folders.remove(place)
        elif not listed:
            with suppress(NoSuchNode):
                # A folder whose owner cannot be read may be that of this node.
                folders.find(self._cache, node_id)
            raise NoSuchNode(f"no node {node_id!r} in the account (see `lab nodes`)")

    def _settle_s(self, known: Holdings) -> float:
        """How long to watch the lists before the tag goes, without which a droplet that shows up late is lost.

        Who ordered it may have died a moment ago, before the id was written down.
        """
        if known.droplets:
            return 0.0
        self._progress(f"{known.name.node_id}: no droplet is listed; looking for one for {SETTLE_S:g} s")
        return SETTLE_S

    def collect_garbage(self, *, dry_run: bool) -> list[str]:
        """See :class:`lab.providers.contract.Provider`: ours by name and tag, with an expiry in the past."""
        found = inventory.read(self._api)
        now = self._now()
        removed: list[str] = []
        problems: list[str] = []
        left = {name.node_id for name in found}
        for name, mine in sorted(found.items()):
            if name.expires_s > now:
                self._progress(f"not touched: {mine.shown()} expires {name.expiry} (`lab down` removes it now)")
                continue
            try:
                if not dry_run:
                    self._remove(mine)
                    left.discard(name.node_id)
                removed.append(mine.shown())
            except LeftBehind as error:
                problems.append(str(error))
        try:
            removed += self._remover().collect_tags(found, now, dry_run=dry_run)
        except LabError as error:
            # The ids of what stayed must not be lost.
            if not problems:
                raise
            problems.append(str(error))
        self._forget_folders(left, dry_run=dry_run)
        if problems:
            raise LeftBehind("\n".join(problems))
        return removed

    def _forget_folders(self, in_account: set[str], *, dry_run: bool) -> None:
        """Delete folders of dead owners whose node the account does not have (any more)."""
        for place in folders.read(self._cache, self.name):
            if not dry_run and place.id not in in_account and not place.is_in_use(self._now()):
                folders.remove(place)
