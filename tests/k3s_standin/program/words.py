"""The command lines that the lab uses. Anything else is refused, so that a new use is noticed and described. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .layout import KUBECONFIG, SOCKET, Refused

_NAME = r"[a-z0-9][a-z0-9.-]*"
_PLACE = rf"(?: -n {_NAME}| -A| --field-selector type=Warning)*"
_KUBECTL = rf"--cache-dir=/run/lab/kubectl --kubeconfig={re.escape(KUBECONFIG)} --request-timeout=[0-9.]+s "
_FORMS = (
    r"get --raw /(?:readyz|version|metrics)",
    rf"get node {_NAME} -o (?:name|jsonpath=[^\n]+)",
    rf"get (?:pods|pod {_NAME}|node {_NAME}|resourcequota {_NAME}|events){_PLACE} -o json",
    rf"get serviceaccount default (?:-n|--namespace) {_NAME}(?: -o name)?",
    rf"get namespace {_NAME} -o name --ignore-not-found",
    rf"create namespace {_NAME}",
    r"apply --server-side --force-conflicts -f -",
    r"create -f -(?: --dry-run=server)? -o name",
    rf"delete(?: pod/{_NAME})+ -n {_NAME} --ignore-not-found --grace-period=1 --wait=false",
)
_CTR = f"--address {SOCKET} -n k8s.io images import -".split()


def _compiled(form: str) -> re.Pattern[str]:
    """A form as it is matched: a line for each word, since a word may hold spaces."""
    return re.compile((_KUBECTL + form).replace(" ", "\n"))


_KNOWN = tuple(_compiled(form) for form in _FORMS)


@dataclass(frozen=True)
class Call:
    """One call: what is to be done, and with which words."""

    kind: Literal["version", "server", "kubectl", "ctr"]
    words: tuple[str, ...] = ()

    @property
    def asks_version(self) -> bool:
        """Whether kubectl is asked for the API server's version."""
        return self.kind == "kubectl" and self.words[-2:] == ("--raw", "/version")


def parse(name: str, words: Sequence[str]) -> Call:
    """A call by the program's file name and its words; Refused for one that docs/k3s.md does not have."""
    shown = " ".join((name, *words))
    if name == "ctr":
        if list(words) != _CTR:
            raise Refused(f"{shown}: as ctr it knows only: {' '.join(_CTR)}")
        return Call("ctr", tuple(words))
    if name != "k3s":
        raise Refused(f"{shown}: it is called k3s or ctr")
    if list(words) == ["--version"]:
        return Call("version")
    if list(words) == ["server"]:
        return Call("server")
    if words and words[0] == "kubectl":
        return _kubectl(words[1:], shown)
    raise Refused(f"{shown}: it knows only --version, server without flags, and kubectl")


def _kubectl(words: Sequence[str], shown: str) -> Call:
    text = "\n".join(words)
    if text.count("\n") != len(words) - 1 or not any(form.fullmatch(text) for form in _KNOWN):
        raise Refused(f"{shown}: these words of kubectl are not among those that the lab uses (docs/k3s.md)")
    return Call("kubectl", tuple(words))
