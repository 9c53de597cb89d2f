"""Labs that are killed at any moment, and `lab gc` afterwards; and mutants that show that these tests can fail."""

from __future__ import annotations

import re

import pytest

from lab.model import NodeError
from lab.providers.digitalocean import errors, inventory, names
from lab.providers.digitalocean import provider as provider_module
from lab.providers.digitalocean.api import ApiAmbiguous
from lab.providers.digitalocean.inventory import Holdings, Remover
from lab.providers.digitalocean.provider import DigitalOceanProvider
from tests import cloud_crashes
from tests.cloud_crashes import ACCOUNTS, SCHEDULES, Broken, collect_in_many_accounts, run_schedules


def test_killed_labs_leave_nothing_once_their_time_is_over(tmp_path, monkeypatch):
    told = run_schedules(tmp_path, monkeypatch, SCHEDULES)
    print(told)
    assert "killed" in told
    assert "gc disturbed" in told


GHOST = 415
"""A schedule whose last gc meets a lone tag that the list of droplets shows on one that is gone."""


def test_a_droplet_that_is_only_listed_any_more_keeps_no_tag(tmp_path, monkeypatch):
    assert run_schedules(tmp_path, monkeypatch, 1, first=GHOST).startswith("1 schedules: 0 resources left")


def test_that_schedule_notices_when_the_list_is_believed(tmp_path, monkeypatch):
    def listed(self, tag, *, but_for=None):
        return [one.name for one in self.api.droplets(tag) if but_for is None or names.parse(one.name) != but_for]

    monkeypatch.setattr(Remover, "_carriers", listed)
    with pytest.raises(Broken, match=f"schedule {GHOST}: in the account are"):
        run_schedules(tmp_path, monkeypatch, 1, first=GHOST)


def test_only_what_is_ours_by_name_and_tag_and_expired_is_removed(tmp_path):
    print(collect_in_many_accounts(tmp_path, ACCOUNTS))


# --- mutants: each breaks one rule, and must be noticed ---------------------------------------------------------------


def gc_ignores_keys(monkeypatch):
    monkeypatch.setattr(Remover, "_keys", lambda self, left: None)


def gc_ignores_firewalls(monkeypatch):
    monkeypatch.setattr(Remover, "_firewalls", lambda self, left: None)


def gc_ignores_lone_tags(monkeypatch):
    monkeypatch.setattr(inventory, "lone_tags", lambda api, found: [])


def gc_forgets_folders_never(monkeypatch):
    monkeypatch.setattr(DigitalOceanProvider, "_forget_folders", lambda self, left, *, dry_run: None)


def one_delete_is_enough(monkeypatch):
    def droplets(self, left, settle_s):
        for number in left.droplets | inventory.droplets_of(self.api, left.name):
            self.api.delete_droplet(number)

    monkeypatch.setattr(Remover, "_droplets", droplets)


def a_refused_delete_is_final(monkeypatch):
    monkeypatch.setattr(errors, "_BUSY", ())


def a_lost_create_is_repeated(monkeypatch):
    def once(self, what, make, find):
        try:
            return make()
        except ApiAmbiguous:
            return make()

    monkeypatch.setattr(DigitalOceanProvider, "_once", once)


def a_lost_create_is_forgotten(monkeypatch):
    def once(self, what, make, find):
        return make()

    monkeypatch.setattr(DigitalOceanProvider, "_once", once)
    monkeypatch.setattr(provider_module, "SETTLE_S", 0.0)


def lists_are_believed_at_once(monkeypatch):
    monkeypatch.setattr(provider_module, "SETTLE_S", 0.0)


def down_believes_the_first_list(monkeypatch):
    monkeypatch.setattr(DigitalOceanProvider, "_settle_s", lambda self, known: 0.0)


def the_tag_is_not_looked_at(monkeypatch):
    def read(api):
        found = {}
        listed = [(droplet.name, "droplets", droplet.id) for droplet in api.droplets()]
        listed += [(firewall.name, "firewalls", firewall.id) for firewall in api.firewalls()]
        listed += [(key.name, "keys", key.id) for key in list(api.keys())]
        for text, kind, number in listed:
            if (name := names.parse(text)) is not None:
                getattr(found.setdefault(name, Holdings(name=name)), kind).add(number)
        return found

    monkeypatch.setattr(inventory, "read", read)


def the_name_is_not_looked_at(monkeypatch):
    read = inventory.read

    def and_keys_by_their_comment(api):
        found = read(api)
        for key in list(api.keys()):
            tag = "".join(key.public_key.split()[2:3])
            if (expires := names.expiry_of_tag(tag)) is not None:
                name = names.CloudName(node_id=tag.removeprefix("node-lab:nlab-")[:-12], expires_s=expires)
                found.setdefault(name, Holdings(name=name)).keys.add(key.id)
        return found

    monkeypatch.setattr(inventory, "read", and_keys_by_their_comment)


def the_expiry_is_not_looked_at(monkeypatch):
    collect = DigitalOceanProvider.collect_garbage

    def at_the_end_of_time(self, *, dry_run):
        self._now = lambda: 9e9
        return collect(self, dry_run=dry_run)

    monkeypatch.setattr(DigitalOceanProvider, "collect_garbage", at_the_end_of_time)


def a_dry_run_is_none(monkeypatch):
    collect = DigitalOceanProvider.collect_garbage
    monkeypatch.setattr(DigitalOceanProvider, "collect_garbage", lambda self, *, dry_run: collect(self, dry_run=False))


def names_are_taken_loosely(monkeypatch):
    monkeypatch.setattr(names, "_NAME", re.compile(r".*nlab-([a-z0-9][a-z0-9.-]*[a-z0-9])-x(\d{10}).*"))


def tags_are_taken_loosely(monkeypatch):
    monkeypatch.setattr(names, "_TAG", re.compile(r".*node-lab:nlab-[a-z0-9][a-z0-9_-]*[a-z0-9]-x(\d{10}).*"))


def a_missing_droplet_counts_as_never_made(monkeypatch):
    monkeypatch.setattr(inventory, "droplets_of", lambda api, name: set())


def a_failed_create_is_left_to_gc(monkeypatch):
    monkeypatch.setattr(DigitalOceanProvider, "_clean_up", lambda self, known, unsure, error: None)


def a_failing_removal_is_taken_for_done(monkeypatch):
    def remove(self, known, *, settle_s=0.0):
        try:
            self._droplets(known, settle_s)
        except NodeError:
            return

    monkeypatch.setattr(Remover, "remove", remove)


IN_SCHEDULES = (
    gc_ignores_keys, gc_ignores_firewalls, gc_ignores_lone_tags, gc_forgets_folders_never, one_delete_is_enough,
    a_refused_delete_is_final, a_lost_create_is_repeated, a_lost_create_is_forgotten, lists_are_believed_at_once,
    the_tag_is_not_looked_at, the_expiry_is_not_looked_at, a_missing_droplet_counts_as_never_made,
    a_failed_create_is_left_to_gc, a_failing_removal_is_taken_for_done, down_believes_the_first_list,
)  # fmt: skip
IN_ACCOUNTS = (
    gc_ignores_keys, gc_ignores_firewalls, gc_ignores_lone_tags, the_tag_is_not_looked_at, the_name_is_not_looked_at,
    the_expiry_is_not_looked_at, a_dry_run_is_none, names_are_taken_loosely, tags_are_taken_loosely,
)  # fmt: skip


@pytest.mark.parametrize("mutant", IN_SCHEDULES, ids=lambda mutant: mutant.__name__)
def test_the_schedules_notice(tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(Broken):
        run_schedules(tmp_path, monkeypatch, SCHEDULES)


@pytest.mark.parametrize("mutant", IN_ACCOUNTS, ids=lambda mutant: mutant.__name__)
def test_the_accounts_notice(tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(Broken):
        collect_in_many_accounts(tmp_path, ACCOUNTS)


def test_a_lab_can_be_killed_at_every_kind_of_moment(tmp_path, monkeypatch):
    """The kill points cover every request of an undisturbed life, both sides of it, and every write."""
    machine = cloud_crashes.Machine(monkeypatch)
    schedule = cloud_crashes.Schedule(tmp_path, machine, 1)
    process = cloud_crashes.Process(99, schedule.rng, None)
    before = len(schedule.cloud.wire.calls)
    with machine.runs(schedule.cloud, process, lambda *_: None):
        provider = schedule.cloud.provider()
        provider.destroy(schedule.cloud.create(provider))
    requests = len(schedule.cloud.wire.calls) - before

    writes = process.points - 2 * requests
    assert writes >= 2 * 15
    assert process.points <= cloud_crashes.MOST_POINTS * 1.5
