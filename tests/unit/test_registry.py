"""The list of stages, and claims that name one that is not in it."""

from __future__ import annotations

import pytest

from lab.claims import parse_claims
from lab.model import UsageError
from lab.stages import registry

CLAIM = """
```yaml
id: some-claim
stage: {stage}
title: A title
when: "True"
predict: "True"
falsify: "False"
```
"""


def test_selected_stages_come_in_running_order() -> None:
    assert [stage.name for stage in registry.select(["cpu", "class"])] == ["class", "cpu"]


def test_unknown_stage_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="unknown stage cpus; there are: class, kernel"):
        registry.select(["class", "cpus"])


def test_claim_of_a_stage_that_nobody_runs_is_an_error() -> None:
    registry.check_claims(parse_claims(CLAIM.format(stage="class")))
    with pytest.raises(UsageError, match="claim some-claim: there is no stage 'clas'"):
        registry.check_claims(parse_claims(CLAIM.format(stage="clas")))
