"""Calls over plain gRPC with Ray's messages, without Ray: part of the program `gcs_tables`."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # 4 MB otherwise: 4,000 tasks
    ("grpc.enable_http_proxy", 0),  # as Ray does
)


class CallError(Exception):
    """A call that was not answered."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Call(NamedTuple):
    """A method, and a request to it."""

    path: str
    request: Any
    reply: Any


class Wire:
    """Calls with the token."""

    def __init__(self, token: str | None) -> None:
        self._metadata = [("authorization", f"Bearer {token}")] if token else None
        self.channels: dict[str, Any] = {}

    def start(self, address: str, call: Call, timeout: float) -> Any:
        """Begin a call; `result` has its answer."""
        if address not in self.channels:
            self.channels[address] = _channel(address)
        method = self.channels[address].unary_unary(
            call.path, type(call.request).SerializeToString, call.reply.FromString
        )
        return method.future(call.request, timeout=timeout, metadata=self._metadata)

    def ask(self, address: str, call: Call, timeout: float) -> Any:
        """Call and wait."""
        return result(self.start(address, call, timeout))


def result(started: Any) -> Any:
    """The answer to a call that was started."""
    import grpc  # type: ignore[import-untyped, unused-ignore]

    try:
        return started.result()
    except grpc.RpcError as error:
        raise CallError(started.code().name, str(started.details())) from error


def metadata(of: Any, wire: Wire, address: str, timeout: float) -> dict[str, str]:
    """What the head wrote down of the cluster: `ray_version`, `python_version` (Ray 2.9 to 2.60).

    Empty where it has not. Raises CallError.
    """
    request = of.rpc.InternalKVGetRequest(namespace=b"cluster", key=b"CLUSTER_METADATA")
    call = Call("/ray.rpc.InternalKVGcsService/InternalKVGet", request, of.rpc.InternalKVGetReply)
    try:
        told = json.loads(wire.ask(address, call, timeout).value)
    except (ValueError, RecursionError):
        return {}
    given = told.items() if isinstance(told, dict) else ()
    return {name: value for name, value in given if isinstance(value, str)}


def _channel(address: str) -> Any:
    import grpc  # type: ignore[import-untyped, unused-ignore]

    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, _OPTIONS)
    # As `ray/_private/tls_utils.py`.
    parts = [
        _content(os.environ.get(f"RAY_TLS_{name}", ""))
        for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")
    ]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*parts), _OPTIONS)


def _content(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as stream:
        return stream.read()
