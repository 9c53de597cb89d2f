"""A local DigitalOcean API for tests, written from the public API document and from reports of its users.

* :class:`Account` answers requests in this process, without a socket and without waiting.
* :class:`LocalDigitalOcean` puts an account behind HTTP on loopback.
* :class:`Faults` lets chosen requests go wrong on the way.
* :class:`Machines` is what a backend with real guests implements.

What the model does not know is answered with an error *and* recorded in ``unexpected``: let a fixture assert that it is
empty.
"""

from .account import ALL_SCOPES, Account, Inventory
from .behaviour import AT_ONCE, PROMPT, Behaviour, Delay
from .faults import CloseAfter, CloseBefore, Effect, Error, Faults, Hang, Reply, Slow, TooMany, bad_gateway
from .limits import RateLimits
from .machines import InboundRule, Machines, NoMachines
from .server import TOKEN, Call, LocalDigitalOcean

__all__ = [
    "ALL_SCOPES", "AT_ONCE", "PROMPT", "TOKEN", "Account", "Behaviour", "Call", "CloseAfter", "CloseBefore", "Delay",
    "Effect", "Error", "Faults", "Hang", "InboundRule", "Inventory", "LocalDigitalOcean", "Machines", "NoMachines",
    "RateLimits", "Reply", "Slow", "TooMany", "bad_gateway",
]  # fmt: skip
