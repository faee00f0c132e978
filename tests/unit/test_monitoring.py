"""The alerts on Ray's metrics: each fires, each is silent, and each names a rule that exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydoctor import rules

FOLDER = Path(str(files("raydoctor") / "monitoring"))
ALERTS: dict[str, dict[str, Any]] = {
    each["alert"]: each
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for each in group["rules"]
}
PAGES = Path(__file__).parents[2] / "docs" / "rules"
PROMTOOL = shutil.which("promtool")
S = 'SessionName="s"'
NODE = f'{S},NodeAddress="10.0.0.2"'
IP = f'{S},ip="10.0.0.2"'
GIB = 1 << 30
Series = dict[str, str]
"""Series -> values of each minute, in promtool's notation."""
CASES: dict[str, tuple[Series, Series]] = {
    "RayNodeMemoryHigh": (
        {f"ray_node_mem_used{{{IP}}}": "95x30", f"ray_node_mem_total{{{IP}}}": "100x30"},
        {f"ray_node_mem_used{{{IP}}}": "80x30", f"ray_node_mem_total{{{IP}}}": "100x30"},
    ),
    "RayWorkersKilledForMemory": (
        {f'ray_memory_manager_worker_eviction_total{{{S},Name="train"}}': "_x24 1x5"},
        {f'ray_memory_manager_worker_eviction_total{{{S},Name="train"}}': "3x30"},
    ),
    "RayMemoryKillLoop": (
        {f'ray_memory_manager_worker_eviction_total{{{S},Name="train"}}': "0+1x30"},
        {f'ray_memory_manager_worker_eviction_total{{{S},Name="train"}}': "0+0.2x30"},
    ),
    "RayWorkersDied": (
        {f"ray_unintentional_worker_failures_total{{{S}}}": "2x25 3x5"},
        {f"ray_unintentional_worker_failures_total{{{S}}}": "2x30"},
    ),
    "RayNodeGone": (
        {f'ray_cluster_active_nodes{{{S},node_type="worker"}}': "4x27 3x3"},
        {f'ray_cluster_active_nodes{{{S},node_type="worker"}}': "3x27 4x3"},
    ),
    "RayMetricsGone": (
        {'up{job="ray",instance="10.0.0.2:8080"}': "1x20 0x10"},
        {'up{job="ray",instance="10.0.0.2:8080"}': "1x30", 'up{job="other"}': "0x30"},
    ),
    "RayDiskNearlyFull": (
        {f"ray_node_disk_usage{{{IP}}}": "93x30", f"ray_node_disk_free{{{IP}}}": "7x30"},
        {f"ray_node_disk_usage{{{IP}}}": "60x30", f"ray_node_disk_free{{{IP}}}": "40x30"},
    ),
    "RayObjectStoreFull": (
        {
            f"ray_object_store_available_memory{{{NODE}}}": "1x30",
            f"ray_object_store_used_memory{{{NODE}}}": "99x30",
        },
        {
            f"ray_object_store_available_memory{{{NODE}}}": "30x30",
            f"ray_object_store_used_memory{{{NODE}}}": "70x30",
        },
    ),
    "RaySpillingHeavily": (
        {
            f'ray_object_store_memory{{{NODE},Location="SPILLED"}}': "300x30",
            f"ray_object_store_available_memory{{{NODE}}}": "60x30",
            f"ray_object_store_used_memory{{{NODE}}}": "40x30",
        },
        {
            f'ray_object_store_memory{{{NODE},Location="SPILLED"}}': "50x30",
            f'ray_object_store_memory{{{NODE},Location="MMAP_SHM"}}': "300x30",
            f"ray_object_store_available_memory{{{NODE}}}": "60x30",
            f"ray_object_store_used_memory{{{NODE}}}": "40x30",
        },
    ),
    "RayObjectStoreOnDisk": (
        {f"ray_object_store_fallback_memory{{{NODE}}}": f"{GIB}x30"},
        {f"ray_object_store_fallback_memory{{{NODE}}}": "0x30"},
    ),
    "RayRequestInfeasible": (
        {f"ray_internal_num_infeasible_scheduling_classes{{{NODE}}}": "1x30"},
        {f"ray_internal_num_infeasible_scheduling_classes{{{NODE}}}": "0x20 1x3 0x7"},
    ),
    "RayPlacementGroupPending": (
        {f'ray_gcs_placement_group_count{{{S},State="Infeasible"}}': "1x30"},
        {
            f'ray_gcs_placement_group_count{{{S},State="Registered"}}': "1x30",
            f'ray_gcs_placement_group_count{{{S},State="Pending"}}': "0x20 1x10",
        },
    ),
    "RayTasksStarved": (
        {
            f'ray_tasks{{{S},State="PENDING_NODE_ASSIGNMENT"}}': "3x30",
            f'ray_tasks{{{S},State="RUNNING"}}': "0x30",
        },
        {
            f'ray_tasks{{{S},State="PENDING_NODE_ASSIGNMENT"}}': "3x30",
            f'ray_tasks{{{S},State="RUNNING"}}': "2x30",
        },
    ),
    "RayActorsRestarting": (
        {f'ray_actors{{{S},Source="gcs",Name="A",State="RESTARTING"}}': "1x30"},
        {f'ray_actors{{{S},Source="gcs",Name="A",State="ALIVE"}}': "1x30"},
    ),
    "RayTasksFailing": (
        {f'ray_tasks{{{S},State="FAILED"}}': "0x22 40x8"},
        {f'ray_tasks{{{S},State="FAILED"}}': "40x30"},
    ),
}
"""Alert -> series with which it fires after 30 minutes, and series with which it does not."""


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(ALERTS)
    assert len(ALERTS) >= 12


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_names_its_rule(name: str) -> None:
    rule, notes = ALERTS[name]["labels"]["rule"], ALERTS[name]["annotations"]
    assert rules.find(rule) is not None
    assert notes["explain"] == f"raydoctor explain {rule}"
    assert notes["runbook_url"] == f"{{{{ $externalLabels.raydoctor_docs }}}}/rules/{rule}/"
    assert (PAGES / f"{rule}.md").is_file(), "the site has this page as rules/NAME/"
    assert "raydoctor" in notes["description"]


def promtool(folder: Path, name: str, series: Series, is_firing: bool) -> str:
    """What `promtool test rules` prints if the alert does not fire, or fires, as it should."""
    # An absent series would make an alert silent by accident: promtool compares what fires.
    check = (
        f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
        [{"value": int(is_firing)}],
    )
    document = {
        "rule_files": [str(FOLDER / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": [
                    {"expr": check[0], "eval_time": "29m", "exp_samples": check[1]}
                ],
            }
        ],
    }
    return run_promtool(folder, document)


def run_promtool(folder: Path, document: dict[str, Any]) -> str:
    """What `promtool test rules` prints if a test of this document fails."""
    assert PROMTOOL is not None
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize("name", ALERTS)
@pytest.mark.parametrize("is_firing", [True, False], ids=["fires", "is silent"])
def test_an_alert(name: str, is_firing: bool, tmp_path: Path) -> None:
    series = CASES[name][0 if is_firing else 1]
    assert promtool(tmp_path, name, series, is_firing) == ""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize("site", ["https://docs.example/raydoctor", ""])
def test_a_runbook_is_a_page_of_the_site_that_prometheus_names(site: str, tmp_path: Path) -> None:
    """Prometheus itself makes the address: a label of its configuration, and the path of the page."""
    name = "RayRequestInfeasible"
    notes = {**ALERTS[name]["annotations"], "runbook_url": f"{site}/rules/infeasible-request/"}
    labels = {**ALERTS[name]["labels"], "SessionName": "s"}
    document = {
        "rule_files": [str(FOLDER / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "external_labels": {"raydoctor_docs": site} if site else {},
                "input_series": [{"series": s, "values": v} for s, v in CASES[name][0].items()],
                "alert_rule_test": [
                    {
                        "eval_time": "29m",
                        "alertname": name,
                        "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes}],
                    }
                ],
            }
        ],
    }
    assert run_promtool(tmp_path, document) == ""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize(("kills", "is_firing"), [(12, True), (9, False)])
def test_kills_before_the_first_scrape_count(kills: int, is_firing: bool, tmp_path: Path) -> None:
    series = {f'ray_memory_manager_worker_eviction_total{{{S},Name="train"}}': f"_x20 {kills}x10"}
    assert promtool(tmp_path, "RayMemoryKillLoop", series, is_firing) == ""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_restarts_are_seen_without_the_label_that_ray_2_9_lacks(tmp_path: Path) -> None:
    series = {f'ray_actors{{{S},Name="A",State="RESTARTING"}}': "1x30"}
    assert promtool(tmp_path, "RayActorsRestarting", series, True) == ""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_no_alert_fires_without_a_cluster(tmp_path: Path) -> None:
    for name in ALERTS:
        assert promtool(tmp_path, name, {}, False) == ""


DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
COLUMNS = 24
"""Of Grafana's grid."""


def test_the_dashboard_has_the_fields_of_grafanas_classic_model() -> None:
    """As Grafana's documentation of the dashboard JSON model describes them."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 36, "the first with references to data sources by uid"
    assert {"from", "to"} == set(DASHBOARD["time"])
    assert "id" not in DASHBOARD, "Grafana gives it, and refuses one of another server"
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert {name for name in used if not name.startswith("__")} == variables == {"datasource"}
    for panel in DASHBOARD["panels"]:
        title = panel["title"]
        assert panel["type"] == "timeseries", title
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        assert set(panel["fieldConfig"]) == {"defaults", "overrides"}, title
        assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "bytes", "percentunit"), title
        targets = [target["refId"] for target in panel["targets"]]
        assert targets == list("ABCD"[: len(targets)]), title
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"]), title


def test_no_panel_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 <= place["y"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert cells
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    recorded = [
        {"record": f"query:{n}", "expr": query.replace("$__rate_interval", "5m")}
        for n, query in enumerate(queries)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout


def test_the_dashboard_shows_metrics_that_exist() -> None:
    known = set(re.findall(r"ray\w+", (FOLDER / "alerts.yml").read_text()))
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) >= 8
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            names = set(re.findall(r"\b(?:ray|raydoctor)_\w+", target["expr"]))
            assert names, panel["title"]
            assert names <= known | SERVED, panel["title"]


SERVED = {
    "raydoctor_cluster_up",
    "raydoctor_diagnoses",
    "raydoctor_hung_tasks",
    "raydoctor_leftover_processes",
    "raydoctor_threshold_used_ratio",
    "raydoctor_evidence_complete",
}
"""Of `raydoctor watch --serve`."""
