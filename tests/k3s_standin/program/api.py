"""The few questions that the program itself has for the API server, with the administrator's certificate."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from .components import TAINT
from .layout import API_PORT, NODE_NAME, TLS


class Api:
    """The API server on loopback."""

    def __init__(self) -> None:
        self._tls = ssl.create_default_context(cafile=f"{TLS}/server-ca.crt")
        self._tls.load_cert_chain(f"{TLS}/client-admin.crt", f"{TLS}/client-admin.key")

    def is_ready(self) -> bool:
        """Whether ``/readyz`` says ok."""
        return self._ask("GET", "/readyz") == (200, b"ok")

    def greet_node(self) -> bool:
        """Take the cloud controller's taint from the node, once it is there; whether that is done."""
        path = f"/api/v1/nodes/{NODE_NAME}"
        status, body = self._ask("GET", path)
        if status != 200:
            return False
        node = json.loads(body)
        taints = node["spec"].get("taints", [])
        left = [taint for taint in taints if taint["key"] != TAINT]
        if left == taints:
            return True
        # With its version the server refuses this when the node has changed meanwhile.
        patch = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": left or None}}
        return self._ask("PATCH", path, patch)[0] == 200

    def _ask(self, method: str, path: str, patch: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of one answer; 0 when there is none."""
        connection = http.client.HTTPSConnection("127.0.0.1", API_PORT, timeout=20, context=self._tls)
        headers = {} if patch is None else {"Content-Type": "application/merge-patch+json"}
        try:
            connection.request(method, path, None if patch is None else json.dumps(patch), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
