"""The token is Ray's own choice of one, and nothing that prints it exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.observe.collector.cluster import Cluster, Token
from raydoctor.observe.gcs.token import find


@pytest.fixture
def everywhere(tmp_path: Path) -> dict[str, str]:
    """A token in each place that Ray looks at."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-home\n")
    (tmp_path / "named").write_text("  of-path\r\n")
    return {
        "HOME": str(tmp_path),
        "RAY_AUTH_TOKEN": "\tof-environment ",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "named"),
    }


def test_order_is_rays(everywhere: dict[str, str]) -> None:
    assert find(environment=everywhere) == Token("of-environment", "RAY_AUTH_TOKEN")
    del everywhere["RAY_AUTH_TOKEN"]
    assert find(environment=everywhere) == Token("of-path", everywhere["RAY_AUTH_TOKEN_PATH"])
    del everywhere["RAY_AUTH_TOKEN_PATH"]
    found = find(environment=everywhere)
    assert found == Token("of-home", str(Path(everywhere["HOME"]) / ".ray" / "auth_token"))


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * 100_000])
def test_a_named_file_without_a_token_is_not_passed_over(
    everywhere: dict[str, str], content: bytes | None
) -> None:
    """Ray fails there too ("is set but file cannot be opened or is empty") and reads no other."""
    del everywhere["RAY_AUTH_TOKEN"]
    named = Path(everywhere["RAY_AUTH_TOKEN_PATH"])
    named.unlink() if content is None else named.write_bytes(content)
    assert find(environment=everywhere) is None


def test_an_empty_variable_counts_as_none(everywhere: dict[str, str]) -> None:
    everywhere |= {"RAY_AUTH_TOKEN": " ", "RAY_AUTH_TOKEN_PATH": ""}
    assert find(environment=everywhere).value == "of-home"  # type: ignore[union-attr]


def test_no_home_and_no_file(tmp_path: Path) -> None:
    assert find(environment={}) is None
    assert find(environment={"HOME": str(tmp_path)}) is None


def test_the_clusters_own_goes_first(everywhere: dict[str, str]) -> None:
    known = Token("known", "elsewhere")
    assert find(Cluster(token=known), everywhere) is known


def test_a_token_is_never_printed() -> None:
    token = Token("very-secret-value", "RAY_AUTH_TOKEN")
    assert "very-secret" not in f"{token} {token!r} {Cluster(token=token)!r}"
    assert "RAY_AUTH_TOKEN" in repr(token)
