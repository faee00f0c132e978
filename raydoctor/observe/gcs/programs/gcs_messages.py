"""Ray's gRPC messages as raydoctor ships them, for one version of Ray: part of the program `gcs_tables`.

They are created without importing code of Ray or of a cluster: `ray_messages.txt` describes the messages that
raydoctor uses, with the versions of each line. The version matters: Ray 2.36, 2.39, 2.41 and 2.50 changed the
numbers of fields and enum values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_FILE = Path(__file__).with_name("ray_messages.txt")
_PACKAGES = ("ray.rpc", "ray.rpc.autoscaler")
Version = tuple[int, int]


class Line(NamedTuple):
    """A message or enum (with empty `declared`), or one of its fields or values."""

    kind: str
    """`message` or `enum`."""
    scope: str
    """Its full name: `ray.rpc.Address`."""
    declared: str
    """`optional int64 limit`, `map<string,double> labels`, `RUNNING`."""
    number: int


def lines(version: str = "") -> Iterator[Line]:
    """The lines of a version of Ray (`2.40.0`); the newest known ones if it is newer or empty."""
    asked = _minor(version)
    kind = scope = ""
    for text in _text():
        words = text.split()
        if not words or words[0] == "#":
            continue
        if text.startswith(" "):
            end = words.index("=")
            if _holds(words[end + 2 :], asked):
                yield Line(kind, scope, " ".join(words[:end]), int(words[end + 1]))
        else:
            kind, scope = words[:2]
            if _holds(words[2:], asked):
                yield Line(kind, scope, "", 0)


def versions() -> list[str]:
    """The releases of Ray from which the messages were read, oldest first."""
    head = [text for text in _text() if text.startswith("#")]
    return re.findall(r"\b\d+\.\d+\.\d+\b", " ".join(head))


def is_newest(version: str) -> bool:
    """Whether a version has the newest known messages; True for an unknown version."""
    return (_minor(version) or _last()) >= _last()


def is_newer(version: str) -> bool:
    """Whether a version is newer than the newest known messages."""
    return (_minor(version) or _last()) > _last()


def _last() -> Version:
    return _minor(versions()[-1]) or (0, 0)


@cache
def _text() -> list[str]:
    return _FILE.read_text(encoding="utf-8").splitlines()


def _minor(version: str) -> Version | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    return (int(found[1]), int(found[2])) if found else None


def _holds(bounds: list[str], asked: Version | None) -> bool:
    """Whether `since 2.36 until 2.48` includes a version."""
    if not bounds:
        return True
    given = {name: _minor(bound) for name, bound in zip(bounds[::2], bounds[1::2], strict=True)}
    since, until = given.get("since"), given.get("until")
    if asked is None:
        return until is None
    return (since is None or since <= asked) and (until is None or asked <= until)


# ---------------------------------------------------------------- classes


class Messages:
    """The message classes and enums of one version of Ray: `rpc.Address`, `autoscaler.NodeState`."""

    def __init__(self, version: str = "") -> None:
        from google.protobuf import descriptor_pool  # type: ignore[import-untyped, unused-ignore]

        pool: Any = (
            descriptor_pool.DescriptorPool()
        )  # not the default pool, which contains Ray's own messages
        for file in _files(list(lines(version))):
            pool.AddSerializedFile(file.SerializeToString())
        self.rpc, self.autoscaler = (Package(pool, name) for name in _PACKAGES)

    def of_version(self, version: str) -> Messages:
        """The messages of this version; `self` has the newest ones."""
        return self if is_newest(version) else Messages(version)


class Package:
    """The classes of a package; AttributeError for a class that this version of Ray lacks."""

    def __init__(self, pool: Any, name: str) -> None:
        self._pool = pool
        self._name = name

    def __getattr__(self, name: str) -> Any:
        full = f"{self._name}.{name}"
        try:
            made = _class(self._pool.FindMessageTypeByName(full))
        except KeyError:
            made = self._enum(full)
        setattr(self, name, made)
        return made

    def _enum(self, full: str) -> Any:
        from google.protobuf.internal import enum_type_wrapper  # type: ignore[import-untyped, unused-ignore]

        try:
            return enum_type_wrapper.EnumTypeWrapper(self._pool.FindEnumTypeByName(full))
        except KeyError:
            raise AttributeError(f"this version of Ray has no {full}") from None


def _class(descriptor: Any) -> Any:
    from google.protobuf import message_factory  # type: ignore[import-untyped, unused-ignore]

    make = getattr(message_factory, "GetMessageClass", None)
    if make is None:  # protobuf < 4.22
        make = message_factory.MessageFactory(descriptor.file.pool).GetPrototype
    return make(descriptor)


# ---------------------------------------------------------------- descriptors


def _files(found: list[Line]) -> list[Any]:
    """A `FileDescriptorProto` for each package."""
    from google.protobuf import descriptor_pb2  # type: ignore[import-untyped, unused-ignore]

    rpc, autoscaler = (
        descriptor_pb2.FileDescriptorProto(name=name, package=name, syntax="proto3")
        for name in _PACKAGES
    )
    autoscaler.dependency.append(rpc.name)
    made: dict[str, Any] = dict(zip(_PACKAGES, (rpc, autoscaler), strict=True))
    enums = {line.scope for line in found if line.kind == "enum"}
    # A message comes before its nested messages.
    for line in sorted(found, key=lambda line: (line.kind == "enum", line.scope)):
        if not line.declared:
            made[line.scope] = _new(line, made)
        elif line.kind == "enum":
            made[line.scope].value.add(name=line.declared, number=line.number)
        else:
            _add_field(made[line.scope], line, enums)
    for message in made.values():
        _add_optional_oneofs(message)
    return [rpc, autoscaler]


def _new(line: Line, made: Mapping[str, Any]) -> Any:
    outer, _, name = line.scope.rpartition(".")
    parent = made[outer]
    if line.kind == "enum":
        return parent.enum_type.add(name=name)
    return (parent.message_type if outer in _PACKAGES else parent.nested_type).add(name=name)


def _add_field(message: Any, line: Line, enums: set[str]) -> None:
    *modifier, kind, name = line.declared.split()
    rule = modifier[0] if modifier else ""
    field = message.field.add(name=name, number=line.number, label="LABEL_OPTIONAL")
    if kind.startswith("map<"):
        key, value = kind[len("map<") : -1].split(",")
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for number, (inner, of) in enumerate((("key", key), ("value", value)), 1):
            _set_type(entry.field.add(name=inner, number=number, label="LABEL_OPTIONAL"), of, enums)
        rule, kind = "repeated", f"{line.scope}.{entry.name}"
    _set_type(field, kind, enums)
    field.proto3_optional = rule == "optional"
    if rule == "repeated":
        field.label = field.LABEL_REPEATED
    elif rule.startswith("oneof:"):
        field.oneof_index = _oneof(message, rule.partition(":")[2])


def _set_type(field: Any, kind: str, enums: set[str]) -> None:
    if "." in kind:
        field.type = field.TYPE_ENUM if kind in enums else field.TYPE_MESSAGE
        field.type_name = f".{kind}"
    else:
        field.type = field.Type.Value(f"TYPE_{kind.upper()}")


def _oneof(message: Any, name: str) -> int:
    names = [each.name for each in message.oneof_decl]
    if name not in names:
        message.oneof_decl.add(name=name)
        return len(names)
    return names.index(name)


def _add_optional_oneofs(message: Any) -> None:
    """Put each optional field into its own oneof, after all others of the message (descriptor.proto)."""
    for field in getattr(message, "field", ()):
        if field.proto3_optional:
            field.oneof_index = _oneof(message, f"_{field.name}")
