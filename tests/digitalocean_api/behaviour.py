"""What of the API differs from run to run or is not documented: delays, and what it does in the doubtful cases.

A delay is counted in answers (polls), in seconds of the account's clock, or both. Nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Over once ``polls`` answers have shown the old state *and* ``seconds`` have passed."""

    polls: int = 0
    seconds: float = 0.0


AT_ONCE = Delay()


@dataclass(slots=True, kw_only=True)
class Timer:
    """One running delay. ``poll`` counts an answer that showed the old state."""

    delay: Delay
    since_s: float
    polls: int = 0
    last_poll_s: float = float("-inf")

    def poll(self, now: float) -> None:
        """Count one answer, as long as answers are still missing."""
        if self.polls < self.delay.polls:
            self.polls += 1
            self.last_poll_s = now

    def over_at(self, now: float) -> float | None:
        """The moment at which the delay was over; None while it still runs at ``now``."""
        at = max(self.since_s + self.delay.seconds, self.last_poll_s)
        return at if self.polls >= self.delay.polls and at <= now else None

    def is_over(self, now: float) -> bool:
        """Whether the new state is to be shown."""
        return self.over_at(now) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How an account answers; ``dataclasses.replace`` changes one thing.

    Assign another one to ``account.behaviour`` at any time; running delays keep theirs.

    A poll of ``active_after``, ``addressed_after`` and ``gone_after`` is a GET of the droplet or of its action, or the
    last page of a list that shows it. A poll of the ``listed`` delays is the last page of a list of that kind:
    ``tag_`` for lists with ``tag_name``, the others for the full list and for lists with ``name``.
    """

    active_after: Delay = Delay(polls=2)
    addressed_after: Delay = AT_ONCE  # counted from `active`: networks stay empty meanwhile
    gone_after: Delay = Delay(polls=2)
    listed_after: Delay = Delay(polls=1)
    unlisted_after: Delay = Delay(polls=1)  # counted from the moment at which GET answers 404
    tag_listed_after: Delay = Delay(polls=1)
    tag_unlisted_after: Delay = Delay(polls=1)
    firewall_applied_after: Delay = Delay(polls=2)

    # While another action on the droplet is pending (hashicorp/packer#1814, test-kitchen/kitchen-digitalocean#40).
    delete_while_pending: Literal["refused", "ignored", "taken"] = "refused"
    boot_is_firewalled: bool = True  # False: a droplet is open until its tag's firewall has settled again
    locked_refuses_everything: bool = False  # False: a locked account may still read and delete
    key_limit_tells_retry_after: bool = False

    # Not documented, and not known from reports either.
    icmp_ports_may_be_empty: bool = True
    existing_tag_status: int = 201
    delete_by_unknown_tag_status: int = 204

    # A field of newer versions of the API, which older clients do not know.
    rules_carry_action: bool = False


# No lag anywhere: every change is seen by the next request.
PROMPT = Behaviour(
    active_after=AT_ONCE,
    gone_after=AT_ONCE,
    listed_after=AT_ONCE,
    unlisted_after=AT_ONCE,
    tag_listed_after=AT_ONCE,
    tag_unlisted_after=AT_ONCE,
    firewall_applied_after=AT_ONCE,
)
