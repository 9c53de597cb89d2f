"""What is asked of the account before money is spent: is it usable, is there room, does what was ordered exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lab.config import NodeOptions
from lab.host import told_when_long
from lab.model import NodeError, UsageError
from lab.providers.digitalocean.address import one_address, public_address
from lab.providers.digitalocean.api import Api, ApiRefused
from lab.providers.digitalocean.names import TAG_PREFIX
from lab.providers.digitalocean.records import Size


class Catalogue:
    """Size, region, image and account, each asked for once."""

    def __init__(
        self, api: Api, options: NodeOptions, address_url: str | None, progress: Callable[[str], None]
    ) -> None:
        self._api = api
        self._progress = progress
        self._options = options
        self._address_url = address_url
        self._size: Size | None = None
        self._allow_from: str | None = None
        self._checked = False

    def size(self) -> Size:
        """The size that was ordered; UsageError when there is none of that name."""
        if self._size is None:
            sizes = {size.slug: size for size in self._api.sizes()}
            if self._options.size not in sizes:
                near = sorted(slug for slug in sizes if slug.startswith(self._options.size[:2]))
                raise UsageError(f"--size {self._options.size}: no such size; there are {', '.join(near[:12])}, …")
            self._size = sizes[self._options.size]
        return self._size

    def allow_from(self) -> str:
        """The one address that may reach SSH, as a /32: what the user said, or this machine's public address."""
        if self._allow_from is None:
            given = self._options.allow_from
            self._allow_from = one_address(given) if given is not None else self._own_address()
        return f"{self._allow_from}/32"

    def _own_address(self) -> str:
        with told_when_long("waiting for a service that tells this machine's public address", self._progress):
            return public_address(self._address_url)

    def check(self) -> None:
        """UsageError or NodeError, one sentence, for everything that would fail later or cost money for nothing."""
        if self._checked:
            return
        account = self._api.account()
        if account.status == "locked":
            raise NodeError(f"the DigitalOcean account is locked: {account.status_message or 'no reason given'}")
        options, size = self._options, self.size()
        if not size.available:
            raise UsageError(f"--size {size.slug} is not to be had at the moment")
        regions = self._api.regions()
        if not regions.get(options.region, False):
            known = ", ".join(sorted(slug for slug, available in regions.items() if available))
            raise UsageError(f"--region {options.region}: not available; there are {known}")
        if options.region not in size.regions:
            raise UsageError(f"--size {size.slug} is not to be had in {options.region}; try {', '.join(size.regions)}")
        if not self._api.image_exists(options.image):
            raise UsageError(f"--image {options.image}: no such image")
        there = len(self._api.droplets())
        if there >= account.droplet_limit:
            raise NodeError(
                f"the account has {there} of {account.droplet_limit} droplets: `lab gc` removes leftovers of the lab, "
                "or ask DigitalOcean for a higher limit"
            )
        # Lists that the removal will need: a token without these scopes could make what it cannot find again.
        self._api.firewalls()
        self._api.keys()
        self._api.tags()
        self._check_deletes()
        self.allow_from()
        self._checked = True

    def _check_deletes(self) -> None:
        """Delete what cannot be there: a token without these scopes would go on paying for what it makes."""
        deletes: tuple[Callable[[], None], ...] = (
            partial(self._api.delete_droplet, 0),
            partial(self._api.delete_firewall, "00000000-0000-0000-0000-000000000000"),
            partial(self._api.delete_key, 0),
            partial(self._api.delete_tag, f"{TAG_PREFIX}nobody"),
        )
        for delete in deletes:
            try:
                delete()
            except ApiRefused as error:
                # Another refusal than of the token only says that there is no such thing.
                if error.status in (401, 403):
                    raise
