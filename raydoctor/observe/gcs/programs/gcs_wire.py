"""Calls Ray's gRPC methods without Ray: builds a request, calls a method, reads its reply.

Used by the programs that query a cluster, by `watch`, and by `raydoctor.poll`, which passes Ray's own
messages and Ray's own way to open a channel. A request carries only the fields that this version of Ray has.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from raydoctor.observe.collector.programs import peers
else:  # a program finds only modules in its own folder
    import peers

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # 4 MB otherwise: 4,000 tasks
    ("grpc.enable_http_proxy", 0),  # as Ray does
    (
        "grpc.http2.bdp_probe",
        0,
    ),  # otherwise each reply is followed by a ping, to measure the bandwidth
)
_EQUAL, _NOT_EQUAL = 0, 1
_METADATA = {"namespace": b"cluster", "key": b"CLUSTER_METADATA"}


class _Placeholder(ModuleType):
    """Stands for a module, which it imports when something reads from it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def import_without(name: str, *unused: str) -> None:
    """Import a module, and others that it imports only when something uses them. Raises ImportError."""
    if name not in sys.modules and not any(each in sys.modules for each in unused):
        sys.modules.update({each: _Placeholder(each) for each in unused})
    try:
        import_module(name)
    finally:
        for each in unused:
            if isinstance(sys.modules.get(each), _Placeholder):
                del sys.modules[each]


def load_grpc() -> None:
    """Import gRPC without what only coroutines need: half the time, and 8 MB (1.51 to 1.85 tried)."""
    import_without("grpc", "asyncio", "grpc.aio")


class CallError(Exception):
    """A call without a reply; `code` is gRPC's, such as `UNAVAILABLE`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail


# ------------------------------------------------------------------ requests


class Call(NamedTuple):
    """A method, a request to it, and the class of its reply."""

    path: str
    request: Any
    reply: Any


def call_of(of: Any, service: str, method: str, **fields: Any) -> Call:
    """A call of `method`; `of` holds the messages of the cluster's version of Ray.

    Fields that this version's request does not have are dropped. Raises AttributeError for a method that
    it does not have.
    """
    package = of.autoscaler if service.startswith("autoscaler.") else of.rpc
    request = getattr(package, f"{method}Request")
    known = _fields(request)
    kept = {name: value for name, value in fields.items() if name in known}
    return Call(f"/ray.rpc.{service}/{method}", request(**kept), getattr(package, f"{method}Reply"))


class TaskFilter(NamedTuple):
    """Which tasks `task_events` asks for; an empty field filters nothing."""

    job: bytes = b""
    ids: Sequence[bytes] = ()
    """Since Ray 2.41 at most one: several match every task."""
    name: str = ""
    state: str = ""
    not_in: Sequence[str] = ()
    """States that are left out."""
    exclude_driver: bool = True


def task_events(of: Any, tasks: TaskFilter, limit: int = -1) -> Call:
    """`GetTaskEvents`, at most `limit` tasks (-1: all).

    Ray <= 2.40 has fewer filters (`filters_states`): its reply also contains other tasks.
    """
    filters = of.rpc.GetTaskEventsRequest.Filters
    wanted = {
        "exclude_driver": tasks.exclude_driver,
        "job_filters": [_filter("job_id", tasks.job)] if tasks.job else (),
        "task_filters": [_filter("task_id", each) for each in tasks.ids],
        "task_name_filters": [_filter("task_name", tasks.name)] if tasks.name else (),
        "state_filters": [
            *([_filter("state", tasks.state)] if tasks.state else ()),
            *(_filter("state", each, _NOT_EQUAL) for each in tasks.not_in),
        ],
        # Ray <= 2.40
        "job_id": tasks.job,
        "task_ids": tasks.ids,
        "name": tasks.name,
        "state": tasks.state,
    }
    known = _fields(filters)
    kept = {field: value for field, value in wanted.items() if value and field in known}
    return call_of(of, "TaskInfoGcsService", "GetTaskEvents", limit=limit, filters=filters(**kept))


def filters_states(of: Any) -> bool:
    """Whether the GCS can select tasks by id, name and state: Ray >= 2.41."""
    return "state_filters" in _fields(of.rpc.GetTaskEventsRequest.Filters)


def worker_stats(
    of: Any, worker: bytes, *, memory: bool = False, tasks: bool = True, limit: int = 0
) -> Call:
    """A worker's objects (`memory`), running tasks (`tasks`), and the first `limit` tasks that it owns."""
    return call_of(
        of,
        "CoreWorkerService",
        "GetCoreWorkerStats",
        intended_worker_id=worker,
        include_memory_info=memory,
        include_task_info=tasks,
        limit=limit,
    )


def host_port(address: Any) -> str:
    """The `host:port` of Ray's `Address`."""
    ip = address.ip_address
    return f"[{ip}]:{address.port}" if ":" in ip else f"{ip}:{address.port}"


def _fields(message: Any) -> Any:
    return message.DESCRIPTOR.fields_by_name


def _filter(name: str, value: object, predicate: int = _EQUAL) -> dict[str, object]:
    return {"predicate": predicate, name: value}


# ------------------------------------------------------------------ calls


class _Failed(NamedTuple):
    """Stands in for a call that could not be made."""

    error: CallError

    def result(self) -> Any:
        """Raises CallError."""
        raise self.error


class Wire:
    """Calls to the listeners that `access` allows, with its token, over channels that stay open.

    `opener`: opens a channel to `host:port` with these options and sees to the token and TLS itself, as Ray's
    own function does; it may connect to any listener.
    """

    def __init__(self, access: peers.Access, opener: Callable[..., Any] | None = None) -> None:
        self._access = access
        token = access.token
        self._metadata = [("authorization", f"Bearer {token}")] if token else None
        self._relay = peers.Relay(access)
        self._opener = opener
        self._channels: dict[str, Any] = {}

    def start(self, address: str, call: Call, timeout: float) -> Any:
        """Begin a call that may take `timeout` seconds; `result` takes its reply."""
        try:
            method = self._method(address, call)
        except CallError as failed:
            return _Failed(failed)
        return method.future(call.request, timeout=timeout, metadata=self._metadata)

    def ask(self, address: str, call: Call, timeout: float) -> Any:
        """Call and wait: at half the cost of `start`, for which gRPC starts a thread. Raises CallError."""
        import grpc  # type: ignore[import-untyped, unused-ignore]

        try:
            return self._method(address, call)(
                call.request, timeout=timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise CallError(error.code().name, str(error.details())) from error

    def _method(self, address: str, call: Call) -> Any:
        """gRPC's callable for a method at an address. Raises CallError if no channel to it can be opened."""
        if address not in self._channels:
            try:
                self._channels[address] = self._channel(address)
            except peers.RefusedListenerError as error:
                raise CallError("LISTENER_REFUSED", str(error)) from error
            except (OSError, ValueError) as error:
                raise CallError("UNAVAILABLE", str(error)) from error
        return self._channels[address].unary_unary(
            call.path, type(call.request).SerializeToString, call.reply.FromString
        )

    def close(self) -> None:
        """Close all channels; the next call opens its own again."""
        while self._channels:
            self._channels.popitem()[1].close()

    def _channel(self, address: str) -> Any:
        """Raises OSError, ValueError. With TLS, the certificate authenticates the listener."""
        if self._opener is not None:
            return self._opener(address, _OPTIONS)
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
    """The reply to a call that was started. Raises CallError."""
    import grpc  # type: ignore[import-untyped, unused-ignore]

    try:
        return started.result()
    except grpc.RpcError as error:
        raise CallError(started.code().name, str(started.details())) from error


def reply_or_none(started: Any) -> Any:
    """The reply to a call that was started, None without one: a worker may have ended meanwhile."""
    try:
        return result(started)
    except CallError:
        return None


def metadata(of: Any, wire: Wire, address: str, timeout: float) -> dict[str, str]:
    """What the head recorded about the cluster: `ray_version`, `python_version` (Ray 2.9 to 2.60).

    Empty if it recorded nothing. Raises CallError.
    """
    call = call_of(of, "InternalKVGcsService", "InternalKVGet", **_METADATA)
    try:
        stored = json.loads(wire.ask(address, call, timeout).value)
    except (ValueError, RecursionError):
        return {}
    given = stored.items() if isinstance(stored, dict) else ()
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
