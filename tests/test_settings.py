"""A remedy names only settings that the capture's Ray knows: an unknown `RAY_…` is ignored silently.

The table was measured in the wheels of Ray 2.9.3, 2.20, 2.40, 2.49, 2.50, 2.54, 2.55, 2.56, 2.58 and 2.60 (strings of
the binaries, Python sources); minor versions between two of them are those of Ray's release notes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import report_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FIXTURES = sorted(path.parent for path in (ROOT / "fixtures").glob("*/fixture.toml"))
OLDEST = (2, 9)
ALWAYS = {
    "RAY_ADDRESS",
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD",
    "RAY_DASHBOARD_MAX_EVENTS_TO_CACHE",
    "RAY_DEBUG",
    "RAY_IGNORE_UNHANDLED_ERRORS",
    "RAY_JOB_START_TIMEOUT_SECONDS",
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE",
    "RAY_REDIS_ADDRESS",
    "RAY_ROTATION_BACKUP_COUNT",
    "RAY_ROTATION_MAX_BYTES",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S",
    "RAY_automatic_object_spilling_enabled",
    "RAY_fetch_fail_timeout_milliseconds",
    "RAY_fetch_warn_timeout_milliseconds",
    "RAY_gcs_rpc_server_reconnect_timeout_s",
    "RAY_grpc_client_keepalive_time_ms",
    "RAY_grpc_client_keepalive_timeout_ms",
    "RAY_health_check_failure_threshold",
    "RAY_health_check_timeout_ms",
    "RAY_local_fs_capacity_threshold",
    "RAY_max_grpc_message_size",
    "RAY_max_lineage_bytes",
    "RAY_memory_monitor_refresh_ms",
    "RAY_memory_usage_threshold",
    "RAY_preallocate_plasma_memory",
    "RAY_record_ref_creation_sites",
    "RAY_task_events_max_num_task_in_gcs",
    "RAY_task_oom_retries",
    "RAY_verbose_spill_logs",
    "RAY_worker_cap_enabled",
    "RAY_worker_register_timeout_seconds",
}
SINCE = {
    "RAY_DEBUG_POST_MORTEM": (2, 40),
    "RAY_allow_out_of_band_object_ref_serialization": (2, 40),
    "RAY_enable_infeasible_task_early_exit": (2, 44),
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": (2, 42),
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": (2, 51),
    "RAY_AUTH_MODE": (2, 52),
    "RAY_AUTH_TOKEN": (2, 52),
    "RAY_AUTH_TOKEN_PATH": (2, 52),
    "RAY_pop_worker_max_retries": (2, 55),
    "--enable-resource-isolation": (2, 46),
    "--object-spilling-directory": (2, 46),
    "ray get-auth-token": (2, 52),
    "ray kill-actor": (2, 54),
}
_SETTING = re.compile(
    r"\bRAY_[A-Za-z_]*[A-Za-z]\b(?!\*)|" + "|".join(re.escape(k) for k in SINCE if k[:4] != "RAY_")
)


def known_since(setting: str) -> tuple[int, int]:
    """From which Ray on a setting is there; fails for one that nobody measured."""
    assert setting in ALWAYS or setting in SINCE, f"{setting}: measure it, and add it to the table"
    return SINCE.get(setting, OLDEST)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda f: f.name)
def test_settings_exist_in_the_capture_s_ray(fixture: Path) -> None:
    version = tomllib.loads((fixture / "fixture.toml").read_text())["ray"]
    ray = tuple(int(part) for part in version.split(".")[:2])
    for found in report_of(fixture).diagnoses:
        for remedy in found.remedies:
            for setting in _SETTING.findall("\n".join((remedy.title, *remedy.steps))):
                assert known_since(setting) <= ray, (
                    f"{found.rule} advises {setting} on Ray {version}"
                )


def remedies_in(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every `Remedy(…)` of a rule file, with all the text in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Remedy":
            texts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
            yield node, "\n".join(text for text in texts if isinstance(text, str))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "raydoctor" / "rules").glob("*.py")), ids=lambda p: p.name
)
def test_remedies_say_from_which_ray_on(path: Path) -> None:
    for call, text in remedies_in(path):
        newest = max((known_since(s) for s in _SETTING.findall(text)), default=OLDEST)
        if newest > OLDEST:
            gate = next((k.value for k in call.keywords if k.arg == "since"), None)
            assert gate is not None, f"{path.name}:{call.lineno} needs since={newest}"
            if isinstance(gate, ast.Tuple):
                assert ast.literal_eval(gate) >= newest, f"{path.name}:{call.lineno}"
