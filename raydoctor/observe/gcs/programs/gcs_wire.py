"""Calls over plain gRPC with Ray's messages, without Ray: part of the program `gcs_tables`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from raydoctor.observe.collector.programs import peers
else:  # a program finds what is beside it
    import peers

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


class _Failed:
    """In the place of a call that was not made."""

    def __init__(self, code: str, error: Exception) -> None:
        self._error = CallError(code, str(error))

    def result(self) -> Any:
        """Raises CallError."""
        raise self._error


class Wire:
    """Calls to the listeners that `access` allows, with its token."""

    def __init__(self, access: peers.Access) -> None:
        self._access = access
        token = access.token
        self._metadata = [("authorization", f"Bearer {token}")] if token else None
        self._relay = peers.Relay(access)
        self.channels: dict[str, Any] = {}

    def start(self, address: str, call: Call, timeout: float) -> Any:
        """Begin a call; `result` has its answer."""
        if address not in self.channels:
            try:
                self.channels[address] = self._channel(address)
            except peers.RefusedListenerError as error:
                return _Failed("LISTENER_REFUSED", error)
            except (OSError, ValueError) as error:
                return _Failed("UNAVAILABLE", error)
        method = self.channels[address].unary_unary(
            call.path, type(call.request).SerializeToString, call.reply.FromString
        )
        return method.future(call.request, timeout=timeout, metadata=self._metadata)

    def ask(self, address: str, call: Call, timeout: float) -> Any:
        """Call and wait."""
        return result(self.start(address, call, timeout))

    def _channel(self, address: str) -> Any:
        """Raises OSError, ValueError. With TLS the certificate proves who listens."""
        if _uses_tls() or address in self._access.typed:
            return _channel(address)
        if peers.is_elsewhere(address):
            if not self._access.elsewhere:
                raise peers.RefusedListenerError(peers.UNVOUCHED.format(address))
            return _channel(address)
        link = peers.connect(address, self._access)
        if self._access.token:
            return _channel(self._relay.lead(address, link))
        link.close()
        return _channel(address)


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

    if not _uses_tls():
        return grpc.insecure_channel(address, _OPTIONS)
    # As `ray/_private/tls_utils.py`.
    parts = [
        _content(os.environ.get(f"RAY_TLS_{name}", ""))
        for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")
    ]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*parts), _OPTIONS)


def _uses_tls() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _content(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as stream:
        return stream.read()
