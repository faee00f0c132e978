"""What the hex digits of one id say about others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raydoctor.model import ids

ACTOR = "331fd576af32d153f0d76d1801000000"
TASK = "00e22aed7718a125" + ACTOR
PUT = TASK + "02e1f505"
hex_ids = st.text("0123456789abcdef", min_size=56, max_size=56)


def test_an_object_names_its_creator() -> None:
    parts = ids.parse_object_id(PUT)
    assert parts is not None
    assert (parts.task, parts.actor, parts.job, parts.put) == (TASK, ACTOR, "01000000", True)
    assert parts.number == ids.FIRST_PUT_INDEX + 1


def test_a_return_value_is_no_put() -> None:
    parts = ids.parse_object_id(TASK + "01000000")
    assert parts is not None
    assert not parts.put
    assert parts.number == 1


def test_tasks() -> None:
    normal = "c8ef45ccd0112571" + "f" * 24 + "01000000"
    assert ids.actor_of_task(normal) == ""
    assert ids.actor_of_task("f" * 16 + ACTOR) == ACTOR
    assert ids.is_creation_task("f" * 16 + ACTOR)
    assert not ids.is_creation_task(normal)
    assert ids.is_driver_task("f" * 40 + "01000000")
    assert not ids.is_driver_task(normal)


def test_drivers_jobs_leases() -> None:
    assert ids.job_of_driver("02000000" + "f" * 48) == "02000000"
    assert ids.job_of_driver("a" * 56) == ""
    assert ids.job_of_driver("f" * 56) == ""
    assert ids.driver_of_job("02000000") == "02000000" + "f" * 48
    assert ids.job_number("02000000") == 2
    assert (
        ids.submitter_of_lease("06000000" + ids.driver_of_job("01000000")) == "01000000" + "f" * 48
    )
    assert ids.job_of_actor(ACTOR) == "01000000"


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    ids.parse_object_id(text)
    ids.actor_of_task(text)
    ids.job_of_driver(text)
    ids.submitter_of_lease(text)
    ids.job_number(text)


@given(hex_ids)
def test_the_parts_are_the_whole(value: str) -> None:
    parts = ids.parse_object_id(value)
    if parts is not None:
        assert parts.task + parts.number.to_bytes(4, "little").hex() == value
