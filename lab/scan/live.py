"""Objects of a live cluster, read page by page through the official client. It lists and asks the version, no more.

The client's models are passed by (``_preload_content=False``): they would drop what they do not know and refuse what
they do not expect, and the question is what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from lab.model import EXIT_USAGE, NodeError, UsageError
from lab.scan.findings import owner_of
from lab.scan.records import FixedPlace, Item, Problem
from lab.scan.versions import minor_of_cluster

PAGE = 500
TIMEOUT_S = (10, 60)
MAX_OWNERS = 10

_CORE, _APPS, _BATCH = "CoreV1Api", "AppsV1Api", "BatchV1Api"
# Resource as the client's methods name it, its API class, its kind. Owners come before what they own.
RESOURCES: tuple[tuple[str, str, str], ...] = (
    ("deployment", _APPS, "Deployment"),
    ("stateful_set", _APPS, "StatefulSet"),
    ("daemon_set", _APPS, "DaemonSet"),
    ("replica_set", _APPS, "ReplicaSet"),
    ("cron_job", _BATCH, "CronJob"),
    ("job", _BATCH, "Job"),
    ("replication_controller", _CORE, "ReplicationController"),
    ("pod_template", _CORE, "PodTemplate"),
    ("pod", _CORE, "Pod"),
)
_VERSIONS = {_CORE: "v1", _APPS: "apps/v1", _BATCH: "batch/v1"}
# What the client lets through of a kubeconfig that is damaged or of another form.
_DAMAGED = (yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError)


class Unreachable(NodeError):
    """The cluster does not answer: nothing more can be asked of it. To a scan that is an input it cannot read."""

    exit_code = EXIT_USAGE


class LiveCluster:
    """A cluster behind a kubeconfig context, or the one that this process runs in.

    UsageError when there is no such context, NodeError when the cluster does not answer.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._client = _connect(context)
        self._namespace = namespace
        self.name = f"cluster {context}" if context else "cluster"
        self._owners: dict[str, tuple[str, str | None]] = {}

    def minor(self) -> int:
        """Minor version of the API server, 36 for 1.36; NodeError when it does not tell it."""
        from kubernetes import client

        found = self._call(client.VersionApi(self._client).get_code)
        said = found.get("gitVersion") or f"{found.get('major')}.{found.get('minor')}"
        try:
            return minor_of_cluster(str(said))
        except UsageError:
            raise NodeError(f"its answer names none: {json.dumps(found)[:200]}") from None

    def limit_ranges(self) -> dict[str, list[Mapping[str, Any]]]:
        """LimitRanges by namespace; NodeError when they may not be listed."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for value in self._list("limit_range", _CORE):
            found.setdefault(_metadata(value).get("namespace", ""), []).append(value)
        return found

    def items(self) -> Iterator[Item | Problem]:
        """Every workload and pod.

        A workload whose controlling owner was listed is passed: the owner's template is the same. What a custom
        resource controls is given, since custom resources are not listed. A resource that may not be listed, or a page
        that does not come, is a Problem; the others are still read. Unreachable when the cluster does not answer.
        """
        for resource, api, kind in RESOURCES:
            try:
                for value in self._list(resource, api):
                    owner = owner_of(value)
                    uid = str(_metadata(value).get("uid"))
                    above = None if owner is None else str(owner.get("uid"))
                    self._owners[uid] = (f"{kind}/{_metadata(value).get('name')}", above)
                    controlled = owner is not None and owner.get("controller") is True
                    if kind != "Pod" and controlled and above in self._owners:
                        continue
                    value.setdefault("apiVersion", _VERSIONS[api])
                    yield Item(value=value, file=self.name, place=FixedPlace(first=0), kind=kind)
                    if kind == "Pod":
                        del self._owners[uid]
            except Unreachable:
                raise
            except NodeError as error:
                yield Problem(file=self.name, line=0, text=str(error))

    def owners(self, value: Mapping[str, Any]) -> tuple[str, ...]:
        """Owner chain of an object, nearest first, as far as what was listed tells."""
        owner = owner_of(value)
        if owner is None:
            return ()
        chain = [f"{owner.get('kind')}/{owner.get('name')}"]
        known = self._owners.get(str(owner.get("uid")))
        while known is not None and known[1] is not None and len(chain) < MAX_OWNERS:
            known = self._owners.get(known[1])
            if known is not None:
                chain.append(known[0])
        return tuple(chain)

    def _list(self, resource: str, api: str) -> Iterator[dict[str, Any]]:
        from kubernetes import client

        owner = getattr(client, api)(self._client)
        arguments: dict[str, Any] = {"limit": PAGE}
        if self._namespace is None:
            method = getattr(owner, f"list_{resource}_for_all_namespaces")
        else:
            method = getattr(owner, f"list_namespaced_{resource}")
            arguments["namespace"] = self._namespace
        while True:
            page = self._call(method, **arguments)
            items = page.get("items") or []
            yield from (item for item in items if isinstance(item, dict))
            token = _metadata(page).get("continue")
            if not token:
                return
            arguments["_continue"] = token

    def _call(self, method: Any, **arguments: Any) -> dict[str, Any]:
        """The JSON of one answer; NodeError with the server's own message for any other."""
        import urllib3
        from kubernetes.client.exceptions import ApiException

        try:
            answer = method(_preload_content=False, _request_timeout=TIMEOUT_S, **arguments)
            if not 200 <= answer.status < 300:
                raise NodeError(_refusal(answer.status, answer.data))
            value = json.loads(answer.data)
        except ApiException as error:
            raise NodeError(_refusal(error.status, error.body or error.reason)) from None
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"the cluster does not answer: {error}") from None
        except (ValueError, RecursionError) as error:
            raise NodeError(f"the cluster's answer is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise NodeError(f"the cluster's answer is no object: {str(value)[:200]}")
        return value


def _connect(context: str | None) -> Any:
    try:
        from kubernetes import client, config
    except ImportError:
        raise UsageError("--live needs the Python package kubernetes: pip install 'node-lab[live]'") from None
    configuration = _configuration()
    load: Any = config.load_kube_config
    try:
        load(context=context, client_configuration=configuration, persist_config=False)
        return client.ApiClient(configuration)
    except config.ConfigException as error:
        if context is not None:
            raise UsageError(f"--context {context}: {error}; `kubectl config get-contexts` lists them") from None
        return _inside(config, error)
    except _DAMAGED as error:
        said = " ".join(str(error).split())
        raise UsageError(f"the kubeconfig cannot be read: {said}; `kubectl config view` shows it") from None


def _configuration() -> Any:
    """A configuration with which a request is made once: a cluster that does not answer is told, not waited for."""
    from kubernetes import client

    configuration: Any = client.Configuration()
    configuration.retries = False
    return configuration


def _inside(config: Any, outside: Exception) -> Any:
    """A client for the cluster that this process runs in."""
    from kubernetes import client

    configuration = _configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
        return client.ApiClient(configuration)
    except config.ConfigException:
        raise UsageError(f"no cluster to read: {outside}; set KUBECONFIG, or run inside a cluster") from None
    except _DAMAGED as error:
        raise UsageError(f"the service account of this cluster cannot be read: {error}; set KUBECONFIG") from None


def _refusal(status: int | None, body: Any) -> str:
    """What the server said: the message of its Status object, else the beginning of the text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:200]
    return f"the cluster refused with {status}: {message}"


def _metadata(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found = value.get("metadata")
    return found if isinstance(found, Mapping) else {}
