"""Sizes, regions and images, and their endpoints. Each account has a copy of its own, which a test may change."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING

from .wire import JSON, Answer, Endpoint, Request, UnexpectedRequest, missing, page_of, unprocessable

if TYPE_CHECKING:
    from .account import Account

_EVERYWHERE = ("ams3", "fra1", "lon1", "nyc1", "nyc3", "sfo3", "sgp1")

# slug, memory (MB), vcpus, disk (GB), transfer (TB), $ a month, $ an hour, regions
_SIZES = (
    ("s-1vcpu-512mb-10gb", 512, 1, 10, 0.5, 4.0, 0.00595, ("ams3", "nyc1", "sfo3")),
    ("s-1vcpu-1gb", 1024, 1, 25, 1.0, 6.0, 0.00893, _EVERYWHERE),
    ("s-1vcpu-2gb", 2048, 1, 50, 2.0, 12.0, 0.01786, _EVERYWHERE),
    ("s-2vcpu-2gb", 2048, 2, 60, 3.0, 18.0, 0.02679, _EVERYWHERE),
    ("s-2vcpu-4gb", 4096, 2, 80, 4.0, 24.0, 0.03571, _EVERYWHERE),
    ("s-4vcpu-8gb", 8192, 4, 160, 5.0, 48.0, 0.07143, _EVERYWHERE),
    ("s-8vcpu-16gb", 16384, 8, 320, 6.0, 96.0, 0.14286, _EVERYWHERE),
)

_REGIONS = (
    ("ams3", "Amsterdam 3", True),
    ("fra1", "Frankfurt 1", True),
    ("lon1", "London 1", True),
    ("nyc1", "New York 1", True),
    ("nyc2", "New York 2", False),
    ("nyc3", "New York 3", True),
    ("sfo3", "San Francisco 3", True),
    ("sgp1", "Singapore 1", True),
)

_IMAGES = (
    (195932981, "debian-12-x64", "Debian", "12 x64"),
    (200900001, "debian-13-x64", "Debian", "13 x64"),
    (129211873, "ubuntu-22-04-x64", "Ubuntu", "22.04 (LTS) x64"),
    (155133621, "ubuntu-24-04-x64", "Ubuntu", "24.04 (LTS) x64"),
)


class Catalogue:
    """What can be ordered, by slug, as the API's own objects."""

    def __init__(self) -> None:
        self.sizes: dict[str, JSON] = {
            slug: {
                "slug": slug, "memory": memory, "vcpus": vcpus, "disk": disk, "transfer": transfer,
                "price_monthly": monthly, "price_hourly": hourly, "regions": list(regions), "available": True,
                "description": "Basic",
            }
            for slug, memory, vcpus, disk, transfer, monthly, hourly, regions in _SIZES
        }  # fmt: skip
        self.regions: dict[str, JSON] = {
            slug: {"slug": slug, "name": name, "features": ["backups", "ipv6", "metadata"], "available": available}
            for slug, name, available in _REGIONS
        }
        self.images: dict[str, JSON] = {
            slug: {
                "id": number, "name": name, "distribution": distribution, "slug": slug, "public": True,
                "regions": [region for region, _, available in _REGIONS if available],
                "created_at": "2026-04-20T16:35:07Z", "min_disk_size": 7, "type": "base", "size_gigabytes": 0.6,
                "description": f"{distribution} {name}", "tags": [], "status": "available",
            }
            for number, slug, distribution, name in _IMAGES
        }  # fmt: skip

    def region(self, slug: str) -> JSON:
        """The object of a region, with the sizes that it offers."""
        sizes = [size["slug"] for size in self.sizes.values() if slug in size["regions"]]
        return {**self.regions[slug], "sizes": sizes}

    def image(self, name: str) -> JSON | None:
        """The image with this slug or number."""
        by_number = (image for image in self.images.values() if str(image["id"]) == name)
        return self.images.get(name) or next(by_number, None)

    def choose(self, size_slug: str, image_name: str, region_slug: str | None) -> tuple[JSON, JSON, str]:
        """Copies of size and image, and the region; 422 where the three do not go together.

        Without a region any will do, as the API says: the first by name, which is seldom the one that was meant.
        """
        size, image = self.sizes.get(size_slug), self.image(image_name)
        if size is None:
            raise unprocessable("You specified an invalid size for Droplet creation.")
        if image is None:
            raise unprocessable("You specified an invalid image for Droplet creation.")
        if region_slug is None:
            fitting = [s for s in size["regions"] if s in image["regions"] and self.regions[s]["available"]]
            if not fitting:
                raise unprocessable("Size is not available in this region.")
            region_slug = min(fitting)
        if region_slug not in self.regions:
            raise unprocessable("You specified an invalid region for Droplet creation.")
        if not self.regions[region_slug]["available"]:
            raise unprocessable("Region is not available")
        if not size["available"] or region_slug not in size["regions"]:
            raise unprocessable("Size is not available in this region.")
        if region_slug not in image["regions"]:
            raise unprocessable("The image you specified is not available in the selected region.")
        return copy.deepcopy(size), copy.deepcopy(image), region_slug


def vpc_of(region_slug: str) -> str:
    """The id of a region's default private network."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"default.{region_slug}.vpc.example"))


def _list_sizes(account: Account, request: Request) -> Answer:
    return page_of(account.base_url, request, "sizes", list(account.catalogue.sizes.values()))


def _list_regions(account: Account, request: Request) -> Answer:
    regions = [account.catalogue.region(slug) for slug in account.catalogue.regions]
    return page_of(account.base_url, request, "regions", regions)


def _list_images(account: Account, request: Request) -> Answer:
    kind, private = request.query.get("type"), request.query.get("private")
    if kind not in (None, "distribution", "application"):
        raise UnexpectedRequest(f"query parameter type={kind!r} is unknown")
    if private not in (None, "true", "false"):
        raise UnexpectedRequest(f"query parameter private={private!r} is unknown")
    # Every image of the catalogue is a public distribution.
    images = [] if kind == "application" or private == "true" else list(account.catalogue.images.values())
    return page_of(account.base_url, request, "images", images)


def _get_image(account: Account, request: Request) -> Answer:
    image = account.catalogue.image(request.parts["image"])
    if image is None:
        raise missing()
    return Answer(status=200, body={"image": image})


ENDPOINTS = (
    Endpoint(method="GET", path="sizes", answer=_list_sizes, scopes=("sizes:read",), pages=True),
    Endpoint(method="GET", path="regions", answer=_list_regions, scopes=("regions:read",), pages=True),
    Endpoint(
        method="GET", path="images", answer=_list_images, scopes=("image:read",), pages=True,
        query=frozenset({"type", "private"}),
    ),
    Endpoint(method="GET", path="images/{image}", answer=_get_image, scopes=("image:read",)),
)  # fmt: skip
