"""SIGINT and SIGTERM to a real `lab run --provider digitalocean` at chosen moments, against the local API over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from lab import interrupts
from lab.model import Interrupted
from tests.cloud_processes import new_account, office
from tests.digitalocean_api import Behaviour, Delay, Error, Hang
from tests.guests import wait_for
from tests.projects import listening

TOKEN = "dop_v1_31f7a9c04be2d865"
DELETE_S = 30.0
"""From a signal to the DELETE; far more than it takes, so that a stalled machine does not reach it."""

ENOUGH_S = 90.0


@pytest.fixture
def working(tmp_path):
    with office(tmp_path, TOKEN, new_account(TOKEN)) as made:
        yield made


def calls(working, method, part):
    return [call for call in list(working.api.requests) if call.method == method and part in call.path]


def deletes(working):
    """DELETEs of droplets that are or were there; not the questions whether the token may delete."""
    return [call for call in calls(working, "DELETE", "/droplets/") if not call.path.endswith("/0")]


def ended(working, process, code):
    found = process.wait(timeout=ENOUGH_S)
    text = working.errors()
    assert found == code, text
    assert "Traceback" not in text
    return text


def assert_nothing_left(working):
    inventory = working.api.account.inventory()
    assert inventory.is_empty, inventory
    assert inventory.fading == {}
    assert list((working.cache / "nodes").glob("*")) == []


def assert_deleted_in_time(working, told_s):
    assert deletes(working), "no DELETE was sent"
    assert deletes(working)[0].time - told_s < DELETE_S


def signal_at(working, process, number, what, reached):
    """Send a signal once ``reached`` is true; the moment at which it was sent (the API's clock)."""
    wait_for(what, lambda: process.poll() is not None or reached(), ENOUGH_S)
    assert process.poll() is None, working.errors()
    told_s = time.time()
    process.send_signal(number)
    return told_s


@pytest.mark.parametrize("handled", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/v2/tags$", signal.SIGINT), ("/v2/firewalls$", signal.SIGTERM), ("/v2/account/keys$", signal.SIGINT),
        ("/v2/droplets$", signal.SIGINT), ("/v2/droplets$", signal.SIGTERM),
    ],
)  # fmt: skip
def test_while_something_is_being_made(working, path, number, handled):
    hang = Hang(handled=handled)
    working.api.faults.add("POST", path, hang)
    if not handled:
        # What arrives later still shows up in time when everything here stands still before that.
        working.settle_s = 12.0
    process = working.start(working.run_words())
    told_s = signal_at(working, process, number, f"POST {path}", hang.arrived.is_set)
    if not handled:
        # What was under way arrives although nobody waits for it any more.
        time.sleep(0.5)
        hang.release()
    text = ended(working, process, 130)

    assert f"stopped by {number.name}" in text
    if "droplets" in path and handled:
        assert_deleted_in_time(working, told_s)
    assert len(calls(working, "POST", "/droplets")) == ("droplets" in path)
    assert_nothing_left(working)


def test_before_anything_is_made(working):
    hang = Hang(handled=False)
    working.api.faults.add("GET", "/v2/account", hang)
    process = working.start(working.run_words())
    signal_at(working, process, signal.SIGINT, "the first request", hang.arrived.is_set)
    ended(working, process, 130)

    assert calls(working, "POST", "") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_waiting_for_active(working, number):
    working.api.account.behaviour = Behaviour(active_after=Delay(polls=4, seconds=6))
    process = working.start(working.run_words())
    told_s = signal_at(
        working, process, number, "a look at the droplet",
        lambda: any(call.status for call in calls(working, "GET", "/v2/droplets/")),
    )  # fmt: skip
    ended(working, process, 130)

    assert_deleted_in_time(working, told_s)
    assert len(deletes(working)) > 1, "a DELETE of a new droplet does nothing, so one is not enough"
    assert_nothing_left(working)


def test_while_waiting_for_the_firewall(working):
    working.api.account.behaviour = Behaviour(firewall_applied_after=Delay(seconds=600))
    process = working.start(working.run_words())
    told_s = signal_at(
        working, process, signal.SIGTERM, "a look at the firewall", lambda: calls(working, "GET", "/v2/firewalls/")
    )
    ended(working, process, 130)

    assert_deleted_in_time(working, told_s)
    assert_nothing_left(working)


@pytest.fixture
def silent_port():
    """Somebody listens and never says anything: the lab waits for a greeting."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ENOUGH_S)
        yield server


def started_and_at_ssh(working, server, *words):
    process = working.start(working.run_words(*words, ssh_port=server.getsockname()[1]))
    try:
        connection, _ = server.accept()
    except TimeoutError:
        pytest.fail(working.errors())
    return process, connection


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_waiting_for_ssh(working, silent_port, number):
    process, connection = started_and_at_ssh(working, silent_port)
    with connection:
        told_s = signal_at(working, process, number, "ssh", lambda: True)
        ended(working, process, 130)

    assert_deleted_in_time(working, told_s)
    assert_nothing_left(working)


def test_two_signals_at_once(working, silent_port):
    process, connection = started_and_at_ssh(working, silent_port)
    with connection:
        told_s = signal_at(working, process, signal.SIGINT, "ssh", lambda: True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        ended(working, process, 130)

    assert_deleted_in_time(working, told_s)
    assert_nothing_left(working)


def test_a_second_signal_waits_and_tells_the_ids(working, silent_port):
    working.api.account.behaviour = Behaviour(gone_after=Delay(polls=4, seconds=4))
    process, connection = started_and_at_ssh(working, silent_port)
    with connection:
        signal_at(working, process, signal.SIGINT, "ssh", lambda: True)
        signal_at(working, process, signal.SIGINT, "a DELETE", lambda: deletes(working))
        text = ended(working, process, 130)

    (number,) = working.api.account.machines.started
    assert f"droplet {number}" in text[text.index("still removing") :]
    assert_nothing_left(working)


@pytest.mark.parametrize(("status", "again"), [(403, False), (500, False), (500, True)])
def test_what_cannot_be_deleted_is_named_with_exit_6(working, silent_port, status, again):
    if again:
        # The second signal is to come while the DELETE is still repeated, also when everything here stands still.
        working.retry_s = 15.0
    process, connection = started_and_at_ssh(working, silent_port)
    (number,) = working.api.account.machines.started
    working.api.faults.add("DELETE", f"/v2/droplets/{number}", Error(status=status), times=1000)
    with connection:
        told_s = signal_at(working, process, signal.SIGINT, "ssh", lambda: True)
        if again:
            signal_at(working, process, signal.SIGTERM, "a DELETE", lambda: deletes(working))
        text = ended(working, process, 6)

    assert_deleted_in_time(working, told_s)
    error = text[text.index("error:") :]
    assert f"droplet {number}" in error
    assert working.api.account.inventory().droplets.keys() == {number}
    (firewall,) = working.api.account.firewalls
    assert firewall in error


def test_a_killed_run_is_seen_and_taken_down(working, silent_port):
    process, connection = started_and_at_ssh(working, silent_port)
    with connection:
        process.kill()
        process.wait()
    (name,) = [path.name for path in (working.cache / "nodes").iterdir()]

    listing = working.start(["gc", "--json"], ["nodes", "--json"])
    assert listing.wait(timeout=ENOUGH_S) == 0, working.errors()
    text = working.stdout.read_text()
    (shown,) = json.loads(text[text.index("[\n") :]) if "[\n" in text else pytest.fail(text)
    assert (shown["id"], shown["in_use"], shown["left_over"]) == (name, False, False)
    assert len(working.api.account.inventory().droplets) == 1, "its time is not over"

    down = working.start(["down", name])
    assert down.wait(timeout=ENOUGH_S) == 0, working.errors()
    assert_nothing_left(working)


def test_a_signal_in_the_same_moment_does_not_cut_off_the_clean_up_that_has_just_begun(monkeypatch):
    removed = []
    monkeypatch.setattr(interrupts, "SAME_WISH_S", 3600.0)
    with listening(), interrupts.raising():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Interrupted:
            # Here a provider is on its way into the part in which signals wait.
            os.kill(os.getpid(), signal.SIGTERM)
            removed.append("droplet")
        monkeypatch.setattr(interrupts, "SAME_WISH_S", 0.0)
        with pytest.raises(Interrupted, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert removed == ["droplet"]
