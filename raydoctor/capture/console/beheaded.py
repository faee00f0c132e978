"""Restores the beginning of Ray's own long messages, where a paste begins within one.

Each phrase stands in one message of Ray only, behind its beginning. The texts are those of 2.9 to 2.60; a
part that varies and is lost (an id, an address) is written as unknown.
"""

from __future__ import annotations

from raydoctor.model.patterns import pattern

_WORKER = "A worker died or was killed while executing a task by an unexpected system error. "
_EXIT = f"{_WORKER}Worker exit type: SYSTEM_ERROR Worker exit detail: "
_ENDED = f"{_EXIT}Worker unexpectedly exits with a connection error code 2. End of file. "
_ACTOR = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
_MEMORY = "Task was killed due to the node running low on memory. "
_NODE = (
    "The node with node id: (unknown) and address: (unknown) and node name: (unknown) has been marked dead "
    "because the detector "
)
_AGENT = "The raylet exited immediately because the Ray agent failed. "
_PHRASES = (
    ("Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits ", _WORKER),
    (
        "Worker exit detail: Worker unexpectedly exits ",
        f"{_WORKER}Worker exit type: SYSTEM_ERROR ",
    ),
    ("Worker unexpectedly exits with a connection error code ", _EXIT),
    ("There are some potential root causes. (1) The process is killed by ", _ENDED),
    ("(1) The process is killed by SIGKILL by OOM killer ", _ENDED),
    ("(2) ray stop --force is called. (3) The worker is crashed ", _ENDED),
    ("(3) The worker is crashed unexpectedly due to SIGSEGV ", _ENDED),
    ("because it was the most recently scheduled task; to see more information ", _MEMORY),
    ("Refer to the documentation on how to address the out of memory issue: ", _MEMORY),
    ("To disable worker killing, set the environment variable ", _MEMORY),
    ("killed due to memory pressure (OOM), ", _MEMORY),
    (" Workers crashed due to other reasons at node (ID: ", _MEMORY),
    ("has missed too many heartbeats from it.", _NODE),
    ("The raylet fate shares with the agent.", _AGENT),
    ("The agent failed to start because of unexpected error or port conflict.", _AGENT),
    (
        "The object's owner has exited. This is the Python worker ",
        "ray.exceptions.OwnerDiedError: ",
    ),
    (
        "The local object store is full of objects that are still in scope ",
        "ray.exceptions.ObjectStoreFullError: ",
    ),
)
"""What is left of a message, and what stood above it; the longest rest first."""
_DETAILS = pattern(r"(?:\t| {4,8})(?:class_name|actor_id|pid|name|namespace|ip): \S")
"""The details of an actor in `ActorDiedError`."""
_PROCESS = pattern(r"\((?:raylet|gcs_server)\b[^()\n]{0,100}\) ")
_LOOKED_AT = 10
_CALL = pattern(
    r"\s?(?P<cut>[^\s(\[].{0,120}?)(?P<call>ray::(?P<function>[\w.<>:]{1,200})\(\) \(pid=\d)"
)
_CONSTRUCTED = (
    f"{_ACTOR.partition(' unexpectedly')[0]} because of an error raised in its creation task, "
)
_BEGINNINGS = (
    *("A worker died or was killed ", "The actor died ", "was killed due to the node running low"),
    *("The node with node id: ", "The raylet exited immediately", "ray.exceptions.", "Error: "),
    *("The actor is dead because ", "exceeds the memory usage threshold of "),
    *(
        "Reporting worker exit",
        "Disconnecting ",
        "exit_detail",
        "Workers (tasks / actors) killed due ",
    ),
)
"""Parts of a first line with which a message begins, or another record that quotes a phrase."""


_REASON = "The actor is dead because "
_OWN_RECORDS = ("its worker process has died", "its node has died")
"""Reasons that rules match without the error's first lines."""
_FIRST = 3
"""Lines in which a message may go on: the first one may be the rest of another sentence of it."""


def with_beginning(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines of a paste, with the beginning of the message that its first lines continue."""
    begun = [n for n, (_, text) in enumerate(lines[:_LOOKED_AT]) if text.strip()][:_FIRST]
    for n in begun:
        number, text = lines[n]
        if (
            n == begun[0]
            and text.startswith(_REASON)
            and not text.startswith(_OWN_RECORDS, len(_REASON))
        ):
            return [*lines[:n], (number, _ACTOR.rstrip()), *lines[n:]]
        if any(words in text for words in _BEGINNINGS):
            break
        if restored := _restored(text, is_first=n == begun[0]):
            pieces = [(number, piece) for piece in restored.split("\n")]
            return [*lines[:n], *pieces, *lines[n + 1 :]]
    return lines


def _restored(text: str, is_first: bool) -> str:
    if text.startswith("(") and not _PROCESS.match(text):
        return ""  # a task or an actor may quote it
    process = _PROCESS.match(text)
    writer, text = (process[0], text[process.end() :]) if process else ("", text)
    if is_first and _DETAILS.match(text):
        return _ACTOR + text
    for phrase, beginning in _PHRASES:
        at = text.find(phrase)
        if at == 0 or (at > 0 and is_first):
            return writer + beginning + text[at:]
    if is_first and (match := _CALL.match(text)):
        opening = _CONSTRUCTED if match["function"].endswith(".__init__") else ""
        return opening + text[match.start("call") :]
    return ""
