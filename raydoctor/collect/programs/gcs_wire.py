"""Calls over plain gRPC with Ray's own messages, without Ray: part of the program `gcs_tables`."""

from __future__ import annotations

import os
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from raydoctor.collect.programs import peers
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


def messages(folder: str) -> Any:
    """Ray's modules of messages, found without running Ray's `__init__`."""
    for name in ("ray", "ray.core", "ray.core.generated"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = module
    from ray.core.generated import autoscaler_pb2, common_pb2, core_worker_pb2, gcs_service_pb2

    return types.SimpleNamespace(
        gcs=gcs_service_pb2, common=common_pb2, worker=core_worker_pb2, autoscaler=autoscaler_pb2
    )


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
