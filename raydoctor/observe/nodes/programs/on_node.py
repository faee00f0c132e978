"""Runs on every node inside a Ray task: turns its logs into redacted events, a few kilobytes in total.

It works like `raydoctor diagnose` on that machine, but returns events instead of a report. A watchdog limits
its time by ending the searches that it started; `MOST_BYTES` limits its size. It imports Ray only to get the
session's folder from its worker (`ray._private.worker._global_node`, Ray 2.9 to 2.60).
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from raydoctor.capture.open import Capture, open_capture
from raydoctor.case.rule import Signal
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap
from raydoctor.model.version import __version__
from raydoctor.observe.gcs import token
from raydoctor.observe.nodes.place import place_of
from raydoctor.observe.processes.redact import Redactor
from raydoctor.read import portable
from raydoctor.read.portable import NodeReading

MOST_BYTES = 8 << 20
"""Of one node's events, before compression."""
_HIDDEN = "<secret:record-0>"
"""For a field that is recognized as a secret by its record, not by its own form."""
_PLACEHOLDER = pattern(rb"<secret:([a-z0-9-]+)-(\d+)>")
_AGAIN_S = 0.1
"""Seconds between two searches of the watchdog for new child processes."""


class NodeRequest(NamedTuple):
    """The request to this node."""

    signals: tuple[Signal, ...]
    seconds: float
    """Time limit of the search; the rest is left out."""
    most_events: int
    most_packed: int
    """Largest size of the compressed reply."""
    known_folder: str
    """The logs that the requesting machine already has (`place_of`)."""
    session: str
    """The session's folder."""
    tag: str = ""
    """Distinguishes this node's placeholders for secrets from those of other nodes, numbered separately."""


class NodeReply(NamedTuple):
    """The reply: `about` for the requesting machine, `data` for the capture (compressed)."""

    about: Mapping[str, Any]
    data: bytes = b""


# ---------------------------------------------------------------- signals as data


def unpack(packed: Sequence[Sequence[Any]]) -> tuple[Signal, ...]:
    """Signals as `nodes.py` sends them: rules from `--rules DIR` are not installed on the node."""
    return tuple(
        Signal(kind, find, pattern, tuple(roles), "", extent, symptom, tuple(fold), with_header)
        for kind, find, pattern, roles, extent, symptom, fold, with_header in packed
    )


# ---------------------------------------------------------------- the node's part


def answer(wanted: NodeRequest) -> NodeReply:
    """Read this node's logs. A failure is in `about["problem"]`."""
    began = time.monotonic()
    place = place_of(wanted.session)
    about: dict[str, Any] = {"place": place, "raydoctor": __version__}
    if place and place == wanted.known_folder:
        return NodeReply({**about, "same": True})
    try:
        with open_capture(wanted.session) as capture, _watchdog(wanted.seconds) as late:
            reading = _read(capture, wanted.signals)
    except RaydoctorError as error:
        return NodeReply({**about, "problem": error.message, "hint": error.hint})
    if late.is_set():
        why = f"the search of this node's logs was ended after {wanted.seconds:g} s"
        hint = portable.MORE_TIME
        reading = replace(reading, gaps=(*_without_complaints(reading.gaps), Gap("", why, hint)))
    data, events = _packed(without_secrets(reading, _redactor()), wanted)
    seconds = time.monotonic() - began
    return NodeReply({**about, "events": events, "seconds": seconds}, data)


def _read(capture: Capture, signals: Sequence[Signal]) -> NodeReading:
    from raydoctor.diagnosis import unexplained
    from raydoctor.read import build

    roles = {source.role for source in capture.sources}
    return build.read_node(capture, [*signals, *unexplained.signals(roles)])


def _packed(reading: NodeReading, wanted: NodeRequest) -> tuple[bytes, int]:
    """The compressed reading with as many events as fit, and their number."""
    most = min(wanted.most_events, max(1, len(reading.events)))
    own = rb"<secret:\1-%s-\2>" % wanted.tag.encode() if wanted.tag else rb"\g<0>"
    while most:
        trimmed = portable.trim(reading, most)
        data = _PLACEHOLDER.sub(own, portable.dump(trimmed, __version__))
        packed = zlib.compress(data, 6)
        if len(data) <= MOST_BYTES and len(packed) <= wanted.most_packed:
            return packed, len(trimmed.events)
        most //= 2
    why = "one event of each kind already exceeds the size limit"
    empty = NodeReading((), (), gaps=(Gap("", why, portable.COPY),))
    return zlib.compress(portable.dump(empty, __version__)), 0


def _own_place() -> tuple[str, str]:
    """The session's folder of this worker's raylet, and the first digits of its node's id."""
    import ray
    from ray._private import worker

    node: Any = worker._global_node
    return str(node.get_session_dir_path()), str(ray.get_runtime_context().get_node_id())[:6]


# ---------------------------------------------------------------- bounded in time


@contextmanager
def _watchdog(seconds: float) -> Iterator[threading.Event]:
    """Ends the searches (`rg`) of this process after the time limit; reading continues with their results.

    Ray's own timeout would end this worker and leave its searches running.
    """
    late, done = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        late.set()
        while not done.wait(_AGAIN_S):
            _end_searches()

    thread = threading.Thread(target=watch, name="raydoctor-watchdog", daemon=True)
    thread.start()
    try:
        yield late
    finally:
        done.set()
        thread.join()


def _end_searches() -> None:
    import psutil

    with suppress(psutil.Error):
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if child.name() in ("rg", "rg.exe"):
                    child.kill()


def _without_complaints(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """Without the gaps of searches that the watchdog ended."""
    return tuple(gap for gap in gaps if gap.about != "search")


# ---------------------------------------------------------------- without secrets


def _redactor() -> Redactor:
    found = token.find()
    return Redactor([found.value] if found else [])


def without_secrets(reading: NodeReading, redactor: Redactor) -> NodeReading:
    """A reading with redacted records, and fields without the values that were redacted there."""
    return replace(
        reading,
        events=tuple(_clean(event, redactor) for event in reading.events),
        endings=tuple(_clean(event, redactor) for event in reading.endings),
    )


def _clean(event: Event, redactor: Redactor) -> Event:
    sightings = tuple(_clean(each, redactor) for each in event.sightings)
    text = redactor.redact(event.text)
    message = redactor.redact(event.message) if event.message not in event.text else None
    if message is None and text != event.text:
        message = redactor.redact(event.message)
    before, after = f"{event.text}\n{event.message}", f"{text}\n{message or event.message}"
    fields = {
        name: value
        if before == after and value in before
        else _clean_field(name, value, before, after, redactor)
        for name, value in event.fields.items()
    }
    return replace(
        event,
        text=text,
        message=event.message if message is None else message,
        fields=fields,
        sightings=sightings,
    )


def _clean_field(name: str, value: str, before: str, after: str, redactor: Redactor) -> str:
    """A field's redacted value; the field alone lacks the context that identifies a secret."""
    clean = str(redactor.redact_json({name: value})[name])
    return _HIDDEN if value in before and clean not in after else clean


# ---------------------------------------------------------------- as bytes


def respond(request: bytes, chunks: int, chunk_bytes: int) -> tuple[bytes, ...]:
    """What the task returns: the reply of `answer`, split into chunks that Ray returns inline.

    Larger values than 100 kB would go through the object store, which may be broken.
    """
    asked = json.loads(zlib.decompress(request))
    wanted = NodeRequest(
        unpack(asked["signals"]),
        float(asked["seconds"]),
        int(asked["most_events"]),
        chunks * chunk_bytes - 4096,
        str(asked["known_folder"]),
        *_own_place(),
    )
    given = answer(wanted)
    whole = json.dumps(given.about).encode() + b"\n" + given.data
    return tuple(whole[n * chunk_bytes : (n + 1) * chunk_bytes] for n in range(chunks))
