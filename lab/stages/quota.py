"""Stage quota: a ResourceQuota that forbids BestEffort pods, asked by server-side dry run and by real creation.

The pods of this stage name a scheduler that does not exist, so that nothing starts on the node.
"""

from __future__ import annotations

import json
from typing import Any

from lab.host import Deadline, wait_until
from lab.model import ParseError
from lab.stages.context import StageContext
from lab.stages.contract import Observation, Raw, Stage
from lab.stages.qos_class import PODS, in_order

NAMESPACE = "lab-quota"
CHANGES = {"namespace": NAMESPACE, "scheduled": False}
REFUSAL_PARTS = ("exceeded quota: no-besteffort, ", "requested: pods=1, ", "limited: pods=0")


def collect(ctx: StageContext) -> None:
    """Quota first, its status filled, then each pod by dry run and for real."""
    kubectl = ctx.kubectl
    with ctx.phases.track("quota"):
        kubectl.apply(ctx.manifests.render("quota-namespace"))
        kubectl.apply(ctx.manifests.render("quota"))
        _wait_filled(ctx)
        ctx.save("quota.json", kubectl.get_text("resourcequota", "no-besteffort", "-n", NAMESPACE))
        left = [item["metadata"]["name"] for item in kubectl.get("pods", "-n", NAMESPACE)["items"]]
        kubectl.delete(NAMESPACE, left, deadline=Deadline.after(60))
        for name in PODS:
            manifest = ctx.manifests.render(name, **CHANGES)
            for kind, dry_run in (("dry_run", True), ("create", False)):
                done = kubectl.create(manifest, dry_run=dry_run, check=False)
                said = {"exit": done.exit_status, "stdout": done.stdout, "stderr": done.stderr}
                ctx.save(f"answer-{name}-{kind}.json", json.dumps(said, sort_keys=True) + "\n")
        ctx.save("quota-after.json", kubectl.get_text("resourcequota", "no-besteffort", "-n", NAMESPACE))
        ctx.save("pods-after.json", kubectl.get_text("pods", "-n", NAMESPACE))
        kubectl.delete(NAMESPACE, PODS, deadline=Deadline.after(60))


def _wait_filled(ctx: StageContext) -> None:
    """A fresh quota refuses nothing sensible until its controller has filled the status; the account must exist too."""

    def filled() -> tuple[bool | None, str]:
        quota = ctx.kubectl.get("resourcequota", "no-besteffort", "-n", NAMESPACE)
        account = ctx.kubectl.call("get", "serviceaccount", "default", "-n", NAMESPACE, check=False, repeatable=True)
        status = quota.get("status", {})
        ready = "pods" in status.get("used", {}) and account.exit_status == 0
        return (True if ready else None), f"status {status}, account {account.stderr.strip()[-100:]}"

    wait_until("the quota's status to be filled", filled, Deadline.after(60), interval_s=0.5)


def parse(raw: Raw) -> Observation:
    """Per pod and way of asking: ``admitted``, ``refused`` (by this quota), and the server's message.

    ParseError when the quota is not there, before and after, as the answers rest on it.
    """
    try:
        texts = {(name, kind): raw.get(f"answer-{name}-{kind}.json") for name in PODS for kind in ("dry_run", "create")}
        answers = {key: json.loads(text) for key, text in texts.items() if text is not None}
        stored = {item["metadata"]["name"] for item in json.loads(raw["pods-after.json"])["items"]}
        quotas = [json.loads(raw[name]) for name in ("quota.json", "quota-after.json")]
        forbidding = [(quota["spec"]["scopes"], quota["status"]["hard"]["pods"]) for quota in quotas]
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError("quota answers", str(error)) from error
    if forbidding != [(["BestEffort"], "0")] * 2:
        raise ParseError("not a quota that forbids BestEffort pods, before and after", str(forbidding))
    pods: dict[str, Any] = {}
    for name in PODS:
        pods[name] = {"stored": name in stored}
        for kind in ("dry_run", "create"):
            pods[name][kind], pods[name][f"{kind}_message"] = answer(answers.get((name, kind)))
    return {"pods": pods}


def answer(said: dict[str, Any] | None) -> tuple[str | None, str]:
    """What one answer means; an error that is not this quota's refusal is not an answer (None)."""
    if said is None:
        return None, "not asked"
    message = " ".join(str(said["stderr"]).split())
    if said["exit"] == 0:
        return "admitted", str(said["stdout"]).strip()
    if said["exit"] == 1 and all(part in message for part in REFUSAL_PARTS):
        return "refused", message
    return None, message


def view(observation: Observation) -> dict[str, Any]:
    """``pods[name].answer``: ``admitted`` or ``refused`` when dry run, creation and what is stored agree, else None."""
    pods = {}
    for name, pod in observation["pods"].items():
        agree = pod["dry_run"] == pod["create"] and pod["stored"] == (pod["create"] == "admitted")
        pods[name] = {"answer": pod["create"] if agree else None}
    return {"pods": pods}


def row(observation: Observation) -> dict[str, str]:
    """One column per pod; both answers where dry run and creation differ."""
    cells = {}
    for name, pod in in_order(observation["pods"]):
        dry, real = pod["dry_run"] or "?", pod["create"] or "?"
        cells[name] = real if dry == real else f"{real} (dry run {dry})"
    return cells


def notes(observation: Observation) -> list[str]:
    """The server's own words for each pod that was not admitted."""
    return [
        f"{name}: {pod['create_message']}" for name, pod in observation["pods"].items() if pod["create"] != "admitted"
    ]


STAGE = Stage(
    name="quota",
    title="Admission with a quota that forbids BestEffort",
    version=1,
    judge_version=2,
    cases=(*PODS, "quota", "quota-namespace"),
    scripts=("node_facts.sh",),
    params=lambda options: {},
    changes=CHANGES,
    budget_s=lambda options: 12.0,
    collect=collect,
    parse=parse,
    view=view,
    row=row,
    notes=notes,
)
