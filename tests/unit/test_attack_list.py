"""The attacks of one user against another user and against root, each played by a test, and their number.

An attack is one means towards one end; its victims (root, a user) and a debugger's two addresses are not counted
twice. SECURITY.md describes the same by command.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.helpers import ROOT

LEAST = 40
NOT_MEANS = frozenset({"victim", "owner"})
"""Parameters that name the target of an attack, and not its method."""

ATTACKS = {
    "foreign code is run": (
        "live.test_trust_commands::test_a_command_runs_no_module_of_the_folder_it_is_entered_in",
        "live.test_trust_commands::test_names_of_another_user_s_processes_are_not_completed",
        "live.test_as_user::test_as_root_the_driver_is_the_cluster_s_user",
        "live.test_as_user::test_another_user_s_cluster_gets_no_driver",
        "live.test_as_user::test_as_root_nothing_is_started_for_a_cluster_of_an_unknown_user",
        "live.test_door::test_only_the_user_and_root_come_in",
        "live.test_door::test_another_user_does_not_reach_the_debugger",
        "live.test_demo::test_no_program_of_the_demo_meets_another_users_listener",
    ),
    "a token is sent": (
        "live.test_trust::test_a_process_of_another_user_is_no_daemon",
        "live.test_trust::test_root_sends_another_user_that_users_token_alone",
        "live.test_trust::test_a_listener_of_another_user_gets_no_token",
        "live.test_trust::test_a_whole_look_sends_no_token",
        "live.test_trust::test_a_found_address_is_not_typed",
        "live.test_trust::test_a_listener_that_changes_after_the_check",
        "live.test_trust::test_a_listener_that_changes_while_grpc_is_connected",
        "live.test_trust::test_a_root_process_that_a_user_cannot_verify_names_no_other_machine",
        "live.test_trust::test_a_listener_of_another_user_is_no_answer_of_our_gcs",
        "live.test_trust::test_another_users_ray_current_cluster_is_not_followed",
        "live.test_trust_commands::test_a_command_sends_nothing_to_who_took_the_ports",
        "live.test_trust_commands::test_a_key_of_watch_sends_nothing_to_who_took_the_port",
        "live.test_trust_commands::test_another_user_on_loopback_gets_nothing_from_mcp",
        "live.test_trust_commands::test_mcp_takes_no_token_that_another_user_knows",
        "live.test_trust_commands::test_a_port_that_another_user_holds_is_not_shared",
        "live.test_trust_commands::test_another_user_cannot_join_the_port_of_mcp_or_watch",
        "live.test_attach_other_user::test_a_program_of_another_user_gets_none_of_our_environment",
        "live.test_demo::test_a_real_failure_is_found",
    ),
    "a foreign file is read or changed": (
        "live.test_private::test_root_touches_nothing_for_another_user",
        "live.test_private::test_nothing_is_written_into_a_folder_of_another_user",
        "live.test_private::test_root_writes_no_audit_for_another_user",
        "live.test_trust::test_the_port_of_the_gcs_is_read_from_its_owners_file",
        "live.test_trust::test_another_users_link_to_another_users_session",
        "live.test_trust::test_another_users_link_to_our_session_or_elsewhere",
        "live.test_trust::test_logs_that_are_a_link_are_not_followed",
        "live.test_trust_files::test_the_output_of_a_job_leads_root_nowhere",
        "live.test_trust_files::test_a_job_of_mallory_names_a_file_of_another_user",
        "live.test_trust_files::test_the_session_that_an_output_names_leads_root_nowhere",
        "live.test_trust_files::test_kept_output_of_another_user_is_not_read",
        "live.test_trust_files::test_kept_output_that_is_no_file_is_not_read",
        "live.test_trust_files::test_a_log_of_a_named_session_leads_root_nowhere",
        "live.test_trust_outputs::test_an_output_leads_root_nowhere",
        "live.test_trust_outputs::test_a_folder_of_outputs_leads_root_nowhere",
        "live.test_trust_outputs::test_a_folder_of_theirs_holds_no_way_out",
        "live.test_trust_outputs::test_the_reader_of_a_file_of_theirs_does_not_get_the_output",
        "live.test_trust_commands::test_a_failed_test_diagnoses_no_session_that_another_user_planted",
        "live.test_trust_commands::test_metrics_are_the_same_for_all_and_hold_no_token",
        "fixtures.test_temporary::test_others_folders_links_and_files_are_left",
        "live.test_trust_temporary::test_nothing_is_made_where_another_user_can_replace_it",
    ),
    "an unrelated process is ended or entered": (
        "live.test_private::test_a_planted_registry_ends_no_process",
        "live.test_process_seam::test_other_users",
        "live.test_cancel_others::test_what_has_the_pid_of_a_worker_elsewhere_has_started_nothing_of_the_task",
        "live.test_cancel_others::test_a_worker_without_an_id_has_no_owner",
        "live.test_cancel_others::test_a_poll_ends_no_other_clusters_worker",
        "live.test_trust::test_a_defunct_raylet_does_not_get_the_session_of_another_users_worker",
        "live.test_attach::test_another_users_folder_is_not_used",
        "live.test_demo::test_a_process_that_another_user_marks_is_not_ended",
    ),
}
"""What the attacker wants, and the tests in which it is tried and does not happen."""

ROWS = {
    "every live command": (
        "live.test_trust::test_a_process_of_another_user_is_no_daemon",
        "live.test_trust::test_the_report_names_who_claims_a_session",
        "live.test_trust_commands::test_a_command_sends_nothing_to_who_took_the_ports",
    ),
    "`raydoctor`, `status`, `collect` without a path": (
        "live.test_trust::test_our_own_session_before_another_users_newer_one",
        "live.test_trust::test_another_users_link_to_our_session_or_elsewhere",
        "live.test_trust::test_another_users_ray_current_cluster_is_not_followed",
    ),
    "`diagnose PATH`, `--session NAME`": (
        "live.test_trust::test_a_path_that_was_typed_is_read_and_its_owner_named",
        "live.test_trust_files::test_a_named_session_of_another_user_is_shown_as_theirs",
        "live.test_trust_files::test_a_log_of_a_named_session_leads_root_nowhere",
        "live.test_trust_files::test_what_another_user_writes_into_a_session_is_not_rays_log",
        "unit.test_hostile_input::test_pipes_and_devices_in_a_tree_do_not_block",
    ),
    "`diagnose`, `story`, `diff`": (
        "unit.test_paste::test_no_rule_advises_to_run_a_name",
        "unit.test_attacks::test_no_line_is_slow_for_a_signal",
        "unit.test_archive::test_a_bomb_is_stopped",
    ),
    "`collect --slurm`": (
        "live.test_trust_files::test_the_output_of_a_job_leads_root_nowhere",
        "live.test_trust_files::test_the_session_that_an_output_names_leads_root_nowhere",
    ),
    "`kubectl raydoctor`": (
        "fixtures.test_kubectl::test_a_hostile_cluster",
        "unit.test_paste::test_advice_of_another_node_does_not_act",
    ),
    "`run`": (
        "live.test_trust_files::test_kept_output_of_another_user_is_not_read",
        "live.test_trust_files::test_kept_output_that_is_no_file_is_not_read",
    ),
    "`attach`, `stack`": (
        "live.test_private::test_root_touches_nothing_for_another_user",
        "live.test_door::test_only_the_user_and_root_come_in",
    ),
    "`cancel`, `watch`, `poll`": (
        "live.test_cancel_others::test_what_has_the_pid_of_a_worker_elsewhere_has_started_nothing_of_the_task",
        "live.test_cancel_others::test_a_poll_ends_no_other_clusters_worker",
        "live.test_trust_commands::test_a_key_of_watch_sends_nothing_to_who_took_the_port",
    ),
    "`zombies`": (
        "live.test_private::test_a_planted_registry_ends_no_process",
        "live.test_process_seam::test_other_users",
    ),
    "`raydoctor`, `collect`, `watch`": (
        "live.test_live_processes::test_what_another_user_claims_to_be_a_leftover_is_not_reported",
    ),
    "`zombies --clean`": (
        "live.test_trust_races::test_a_process_elsewhere_shows_no_folder_of_ours_to_clean",
        "live.test_trust_races::test_a_link_of_another_user_leads_to_no_folder_to_clean",
        "live.test_trust_races::test_what_takes_the_name_of_a_dead_session_is_kept",
        "live.test_trust_races::test_what_is_exchanged_while_a_session_is_removed_is_kept",
    ),
    "`-o`, `collect`, `run --log`, `attach --vscode`, `skill`, `rules`": (
        "live.test_trust_outputs::test_an_output_leads_root_nowhere",
        "live.test_trust_outputs::test_a_folder_of_outputs_leads_root_nowhere",
    ),
    "`mcp --http`, `watch --serve`": (
        "live.test_trust_commands::test_another_user_on_loopback_gets_nothing_from_mcp",
        "live.test_trust_commands::test_mcp_takes_no_token_that_another_user_knows",
        "live.test_trust_commands::test_a_port_that_another_user_holds_is_not_shared",
        "live.test_trust_commands::test_metrics_are_the_same_for_all_and_hold_no_token",
    ),
    "`demo`": (
        "live.test_demo::test_a_process_that_another_user_marks_is_not_ended",
        "live.test_demo::test_a_real_failure_is_found",
        "live.test_demo::test_the_demo_has_a_network_of_its_own_or_none",
        "live.test_demo::test_no_program_of_the_demo_meets_another_users_listener",
    ),
    "`completion`": (
        "unit.test_completion::test_running_tasks_are_completed_and_hostile_names_are_not",
        "live.test_trust_commands::test_names_of_another_user_s_processes_are_not_completed",
    ),
    "`pytest --raydoctor`": (
        "live.test_trust_commands::test_a_failed_test_diagnoses_no_session_that_another_user_planted",
    ),
}
"""The rows of SECURITY.md's table of attempts by another user, and the tests that prove each."""


def test_each_row_of_the_threat_model_has_tests() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = page.partition("| command | attempt | result |")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0][2:] for line in table.splitlines()[2:]] == list(ROWS)
    for name in (name for names in ROWS.values() for name in names):
        module, _, test = name.partition("::")
        assert callable(getattr(import_module(f"tests.{module}"), test)), name


def means(test: Callable[..., Any]) -> int:
    """In how many ways a test attacks."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return math.prod(len(mark.args[1]) for mark in marks if mark.args[0] not in NOT_MEANS)


def test_there_are_forty_attacks_and_each_is_tried() -> None:
    found: dict[str, int] = {}
    for names in ATTACKS.values():
        for name in names:
            module, _, test = name.partition("::")
            assert name not in found, name
            found[name] = means(getattr(import_module(f"tests.{module}"), test))
    assert all(found.values())
    assert len(found) >= LEAST  # by tests alone: some of them attack in many ways
    assert sum(found.values()) >= 190


@pytest.mark.parametrize("aim", ATTACKS)
def test_each_aim_is_tried_in_several_ways(aim: str) -> None:
    assert len(ATTACKS[aim]) >= 5
