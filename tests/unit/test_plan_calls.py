"""The calls of a provider's API that a plan shows, against those that are made at least."""

from __future__ import annotations

from lab import plan
from tests.cloud_bench import Cloud


def made(cloud, nodes):
    """Calls of a run with so many nodes, when no answer has to be waited for a second time."""
    provider = cloud.provider()
    provider.check(nodes)
    provider.hourly_price()
    for number in range(nodes):
        provider.destroy(cloud.create(provider, run_id=f"r{number + 1}"))
    calls = [str(call).split("?")[0] for call in cloud.wire.calls]
    return len(calls), calls


def test_a_plan_never_shows_more_calls_than_there_are(tmp_path):
    for nodes in (1, 2):
        (tmp_path / str(nodes)).mkdir()
        count, calls = made(Cloud(tmp_path / str(nodes)), nodes)
        run, node = plan.API_CALLS["digitalocean"]
        assert run + nodes * node <= count, calls
        assert run + nodes * node > 0.6 * count, "and not far fewer"
