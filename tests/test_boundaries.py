"""The boundaries of docs/security.md: the three tables have the same ones, and each is attacked by
tests that exist.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/security.md").read_text()
BOUNDS = "| boundary | who can write to it | bound |"
BEYOND = "| boundary | beyond the bound | attacks that are tests |"
TESTS = "| boundary | tests |"
LEAST_ATTACKS = 3
Function = ast.FunctionDef | ast.AsyncFunctionDef

ATTACKS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "objects of the same name": {
        "test_foreign_apiserver.py": (
            "an_object_of_another_application_is_named_and_neither_changed_nor_deleted",
            "a_service_that_takes_the_name_of_a_running_jobs_is_left_alone",
            "a_change_reaches_only_the_object_in_the_state_that_was_read",
        ),
    },
    "own objects that are edited": {
        "test_edited_objects.py": ("what_is_edited_is_put_right_once",),
        "test_deleted_objects_apiserver.py": (
            "a_service_that_has_lost_its_address_is_made_again_with_it",
        ),
    },
    "pods that webhooks change": {
        "test_executor.py": (
            "a_pod_that_comes_without_its_labels_or_owner_is_deleted_again_and_named",
        ),
        "test_webhooks_apiserver.py": (
            "pods_that_a_webhook_has_made_useless_are_not_made_again_and_again",
            "a_webhook_that_refuses_pods_is_named_and_asked_ever_later",
        ),
    },
    "labels and owner of pods": {
        "test_hostile_pods_apiserver.py": (
            "who_takes_each_new_pod_from_its_job_makes_new_ones_come_ever_later_and_is_named",
        ),
        "test_taken_pods.py": (
            "a_pod_that_is_there_without_its_label_is_found_and_has_no_role",
            "a_pod_that_has_lost_its_owner_is_found_until_it_is_counted",
            "a_pod_that_has_lost_label_and_owner_at_once_is_found",
        ),
    },
    "names in a spec": {
        "test_foreign_apiserver.py": (
            "the_name_of_a_claim_must_be_a_name",
            "no_name_leads_to_another_namespace",
        ),
    },
    "workers and ranks": {
        "test_worker_bounds.py": (
            "a_job_that_is_too_large_is_refused_and_makes_nothing",
            "workers_and_their_ranks_are_bounded_together",
            "a_running_job_cannot_grow_beyond_the_limit",
        ),
        "test_quota_apiserver.py": (
            "a_namespace_has_no_more_jobs_than_its_quota_and_others_are_not_bound_by_it",
        ),
    },
    "checkpoints": {
        "test_hostile_files.py": (
            "a_rank_that_resumes_runs_nothing_that_the_description_names",
            "a_rank_that_resumes_runs_nothing_that_a_shard_names",
            "a_tensor_that_is_none_runs_nothing",
        ),
        "test_restricted_pickle.py": ("a_name_that_is_not_in_the_list_is_refused_and_not_called",),
        "test_plain_values.py": ("reading_runs_no_code",),
    },
    "saves of Accelerate": {
        "test_for_accelerate.py": ("a_registered_object_runs_nothing_that_the_checkpoint_names",),
        "test_plain_reading.py": (
            "the_description_of_a_sharded_state_runs_nothing",
            "an_object_of_a_sharded_state_runs_nothing",
        ),
    },
    "lineage records": {
        "test_lineage.py": (
            "a_record_whose_parent_is_not_older_is_damaged",
            "a_record_of_another_generation_is_damaged",
            "a_record_that_is_missing_is_named",
        ),
    },
    "memory snapshots": {
        "test_snapshot_restore.py": (
            "a_rank_runs_nothing_that_a_peers_snapshot_names",
            "a_damaged_shard_leaves_the_state_to_the_checkpoint_and_says_why",
            "a_snapshot_of_an_abandoned_line_is_never_used",
        ),
    },
    "snapshots sent": {
        "test_replication.py": (
            "sizes_that_cannot_be_are_refused_before_memory_is_taken",
            "a_copy_that_does_not_fit_in_memory_is_refused_and_reported_once",
            "a_wrong_token_and_another_generation_are_refused",
            "only_content_that_matches_its_checksums_is_stored",
        ),
    },
    "ports of pods": {
        "test_network_policy.py": (
            "outsiders_reach_no_port_of_an_isolated_job_which_recovers_all_the_same",
            "outsiders_reach_a_job_whose_policy_is_deleted_until_the_operator_makes_it_again",
        ),
        "test_workload.py": ("a_pod_of_another_job_or_namespace_is_none_of_an_isolated_jobs_own",),
    },
    "the c10d store": {
        "test_template.py": ("whoever_reaches_the_store_reads_and_writes_its_keys",),
        "test_workload.py": (
            "an_isolated_job_lets_in_its_own_pods_and_the_peers_of_the_settings",
            "a_pod_of_another_job_or_namespace_is_none_of_an_isolated_jobs_own",
        ),
        "test_torchrun_workload.py": ("only_its_own_pods_reach_a_job",),
    },
    "a coordinator's port": {
        "test_server_connections.py": (
            "a_flood_of_idle_connections_pushes_itself_out",
            "a_request_that_does_not_arrive_ends_its_connection",
        ),
        "test_server.py": (
            "agents_get_through_while_idle_connections_fill_the_port",
            "a_body_that_does_not_arrive_is_not_waited_for",
        ),
    },
    "requests without token": {
        "test_server_connections.py": (
            "of_those_that_are_answered_without_the_token_there_are_few",
            "who_reads_no_answer_and_has_no_token_is_closed",
        ),
        "test_server.py": ("those_without_the_token_have_few_connections_however_many_workers",),
        "test_series_store.py": (
            "what_has_not_changed_is_serialised_once",
            "those_who_ask_again_and_again_leave_it_to_those_with_the_token",
        ),
    },
    "messages to a coordinator": {
        "test_server.py": (
            "a_wait_that_is_not_finite_is_refused_and_not_waited_for",
            "an_agents_number_that_is_not_finite_closes_its_connection",
            "a_large_body_is_refused",
        ),
        "test_agent_messages.py": (
            "a_number_that_is_not_finite_or_has_too_many_bits_is_refused_by_name",
            "a_number_in_a_list_that_has_too_many_bits_or_is_negative_is_refused_by_name",
            "a_shard_that_a_snapshot_does_not_have_is_refused",
        ),
        "test_inbox.py": ("what_waits_of_a_connection_is_bounded",),
    },
    "heartbeats": {
        "test_heartbeats.py": ("what_is_no_frame_ends_the_connection_and_is_no_sign_of_life",),
        "test_heartbeat_line.py": (
            "whoever_sends_anything_else_is_not_read",
            "of_a_flood_few_frames_are_read_at_a_time",
            "a_peer_that_does_not_read_gets_no_second_answer",
        ),
    },
    "other generations": {
        "test_server.py": ("messages_of_another_generation_do_not_delay_heartbeats",),
        "test_core.py": (
            "a_report_of_another_generation_has_nothing_decided_however_many_there_are",
        ),
        "test_straggler_reports.py": ("a_report_of_another_generation_does_not_count",),
    },
    "what a job's pods may use": {
        "test_user_roles_apiserver.py": ("the_policy_refuses_what_a_job_may_not_do_with_its_pods",),
    },
    "the status of a job": {
        "test_user_roles_apiserver.py": (
            "each_role_of_kubernetes_may_do_this_in_its_own_namespace_only",
            "a_user_of_one_namespace_gets_nothing_in_another",
        ),
        "test_chart.py": ("roles_for_users_write_no_status_and_can_be_left_out",),
    },
    "other namespaces": {
        "test_foreign_apiserver.py": ("a_job_that_points_to_another_namespace_gets_nothing_there",),
        "test_user_roles_apiserver.py": (
            "each_role_of_kubernetes_may_do_this_in_its_own_namespace_only",
            "a_user_of_one_namespace_gets_nothing_in_another",
        ),
    },
    "the operator's key": {
        "test_key_apiserver.py": ("running_jobs_keep_their_key_when_it_is_rotated",),
        "test_keyring.py": (
            "a_key_that_is_no_longer_there_is_named_with_what_to_do",
            "a_secret_without_a_key_is_refused",
        ),
    },
    "a coordinator's log": {
        "system/test_log_lines.py": (
            "few_records_of_a_kind_pass_and_the_next_one_says_how_many_did_not",
            "kinds_are_bounded_too",
            "a_clock_that_goes_back_silences_no_kind",
        ),
        "test_server.py": ("refused_agents_cannot_fill_the_log",),
    },
    "a line of the operator's log": {
        "test_executor.py": (
            "invented_members_make_no_long_line_of_the_log",
            "agents_that_refuse_an_address_are_one_line_of_the_log",
            "excluded_nodes_make_no_long_line_of_the_log",
        ),
    },
    "depth of a spec": {
        "test_spec_reader.py": (
            "a_template_is_refused_by_its_depth_before_anything_recurses",
            "what_the_decoder_cuts_off_is_refused_and_never_taken_for_a_smaller_spec",
        ),
        "test_hostile_objects_apiserver.py": ("deep_objects_are_named_and_others_go_on_at_once",),
    },
    "bytes of a job": {
        "test_list_watch.py": (
            "a_page_is_bounded_in_bytes",
            "an_object_that_cannot_be_read_is_named_and_counted_and_hides_no_other",
            "an_object_that_grows_too_long_for_a_line_ends_no_watch",
            "a_line_without_end_is_not_kept_in_memory",
        ),
        "test_reconcile.py": ("a_job_that_cannot_be_read_is_named_once_and_read_again_later",),
    },
    "size of a spec": {
        "test_spec_reader.py": (
            "a_spec_takes_little_time_however_large_it_is",
            "the_bounds_of_a_specs_size_are_exact_and_named",
        ),
        "test_hostile_jobs.py": (
            "of_the_largest_those_within_bounds_are_taken_and_others_refused_by_name",
        ),
    },
    "coordinator's answers": {
        "test_coordinator_answer.py": (
            "a_value_that_cannot_be_is_refused_with_its_field",
            "no_text_holds_what_a_terminal_would_interpret",
        ),
        "test_coordination.py": (
            "an_answer_that_is_no_status_is_an_answer",
            "a_number_of_400_digits_is_refused_and_the_coordinator_is_followed_on",
            "a_coordinator_of_another_term_is_not_believed",
        ),
    },
    "what an answer costs": {
        "test_coordinator_answer.py": (
            "an_answer_with_more_values_than_its_job_has_is_refused_before_it_is_decoded",
            "a_list_that_is_longer_than_its_job_can_make_it_is_refused",
            "an_answer_that_is_refused_takes_little_more_memory_than_its_bytes_may",
            "a_list_that_is_too_long_is_refused_before_its_entries_are_read",
        ),
        "test_coordination.py": (
            "costly_answers_take_no_more_of_the_operators_time_than_ordinary_ones",
            "ten_answers_of_4_mib_at_once_take_little_memory",
        ),
    },
    "answers that are kept": {
        "test_followed_coordinator.py": (
            "answers_of_a_namespace_take_no_more_than_they_leave_free",
            "an_answer_takes_the_room_of_the_one_before_it_whatever_others_take",
        ),
        "test_coordination.py": (
            "what_is_kept_of_all_answers_has_a_bound_and_each_namespace_a_share_of_it",
        ),
    },
    "rounds that news begin": {
        "test_followed_coordinator.py": ("rounds_that_cost_more_than_their_share_begin_later",),
        "test_coordination.py": (
            "coordinators_that_change_all_the_time_delay_themselves_alone",
            "news_in_a_burst_begin_a_round_each_and_a_lost_coordinator_waits_for_none",
        ),
    },
    "what comes before an answer": {
        "test_metered_answers.py": (
            "an_answer_that_does_not_begin_in_time_is_none",
            "a_flood_of_interim_answers_is_refused_at_once_and_not_soon_asked_for_again",
            "a_body_that_takes_too_long_to_read_is_ended",
            "what_answers_take_is_charged_to_one_meter_whatever_connection_they_come_over",
            "an_answer_is_not_decompressed",
        ),
        "test_coordination.py": ("answers_in_chunks_of_a_byte_take_a_small_part_of_the_thread",),
    },
    "turns at the API server": {
        "test_user_roles_apiserver.py": (
            "the_operators_requests_do_not_wait_behind_those_of_tenants",
        ),
    },
    "evidence of other tenants' agents": {
        "test_outage_breaker.py": (
            "one_namespace_cannot_open_it_for_another",
            "one_namespace_opens_it_for_no_other_where_less_than_a_tenth_of_the_others_fail",
            "one_namespace_does_not_make_a_lost_node_of_another_an_outage",
        ),
        "test_coordination.py": (
            "coordinators_of_one_namespace_that_fail_leave_others_their_witnesses",
        ),
    },
    "questions to agents": {
        "test_agent_survey.py": (
            "agents_of_one_namespace_that_do_not_answer_keep_nobody_else_waiting",
            "an_agent_beside_the_coordinator_is_waited_for_less_long_than_another",
            "a_costly_answer_counts_at_once_and_keeps_its_place_for_longer",
        ),
        "test_coordination.py": (
            "jobs_of_a_namespace_share_its_places_for_questions",
            "agents_that_answer_more_than_a_line_take_little_of_the_thread",
        ),
    },
    "time of the operator": {
        "test_handlers.py": (
            "rounds_of_one_namespace_that_do_not_end_leave_places_for_others",
            "rounds_that_wait_for_pods_of_many_namespaces_take_no_place_of_others",
        ),
        "test_work_queue.py": (
            "a_group_with_many_keys_delays_another_by_one_key",
            "events_of_a_key_that_rests_become_one_turn_at_the_end_of_its_rest",
        ),
        "test_executor.py": (
            "workers_of_a_round_are_rendered_once_and_differ_in_their_place",
            "others_get_turns_between_the_requests_of_a_batch",
        ),
    },
    "decoding of large answers": {
        "test_large_answers.py": (
            "eight_decodings_stop_the_loop_no_longer_than_one_and_take_a_third_of_it",
            "a_namespace_that_has_many_lets_others_in_between",
        ),
        "test_job_pods.py": (
            "a_pod_with_more_entries_than_a_spec_has_values_is_not_looked_through",
        ),
    },
    "requests to the API server": {
        "test_api_connection.py": (
            "a_namespace_whose_writes_are_slow_leaves_connections_to_others",
            "two_such_namespaces_delay_another_by_one_request",
            "the_wait_for_a_place_is_no_missing_answer",
        ),
        "test_fair_places.py": ("groups_that_wait_take_turns",),
    },
    "pods that cannot be read": {
        "test_job_pods.py": (
            "a_pod_that_cannot_be_read_leaves_the_jobs_of_its_name_in_doubt_and_no_others",
            "a_list_that_is_trusted_leaves_the_same_jobs_in_doubt",
        ),
        "test_list_watch.py": ("a_consistent_list_shows_all_but_what_cannot_be_read",),
        "test_object_cache.py": (
            "what_a_list_of_all_could_not_read_is_not_gone_when_a_late_watch_shows_it",
        ),
    },
    "pods": {
        "test_hostile_pods_apiserver.py": ("pods_with_deep_managed_fields_end_no_operator",),
        "test_kubernetes_objects.py": (
            "a_pod_whose_labels_cannot_be_read_has_no_role",
            "what_somebody_has_written_into_a_pod_is_kept_within_bounds",
            "a_time_of_a_pod_that_nothing_can_be_computed_with_is_none",
        ),
        "test_bounded_json.py": ("no_depth_ends_it",),
    },
    "nodes that pods name": {
        "test_node_watch.py": (
            "nodes_that_were_invented_cost_few_requests_and_hide_no_real_one",
            "of_thousands_of_failed_nodes_each_is_read_in_its_turn_and_few_at_a_time",
        ),
        "test_planner.py": (
            "failures_on_nodes_that_were_invented_are_not_remembered",
            "a_pod_that_only_a_finalizer_keeps_is_not_forced_over_and_over",
        ),
    },
    "events of a watch": {
        "test_list_watch.py": (
            "an_object_that_grows_too_long_for_a_line_ends_no_watch",
            "a_large_object_whose_fields_are_in_another_order_is_read_whole",
        ),
        "test_list_watch_apiserver.py": (
            "a_large_object_that_is_changed_in_a_loop_costs_no_other_watch_or_list",
        ),
    },
    "memory for jobs": {
        "test_parsed_jobs.py": (
            "what_was_asked_for_last_stays_where_many_are_too_large_together",
            "one_above_the_bound_is_not_remembered",
        ),
        "test_operator_metrics.py": ("the_series_of_a_job_keep_no_spec",),
    },
    "memory for pods": {
        "test_object_cache.py": (
            "a_value_that_is_too_large_is_not_kept_and_the_object_is_known",
            "a_namespace_that_has_filled_memory_leaves_room_for_another",
        ),
        "test_job_pods.py": (
            "a_pod_that_is_too_large_to_keep_makes_the_api_server_asked",
            "what_a_pod_takes_in_memory_is_counted",
        ),
    },
    "pods that rounds list": {
        "controller/test_cluster.py": (
            "lists_that_rounds_hold_at_once_are_bounded",
            "large_lists_of_one_namespace_leave_room_for_those_of_others",
        ),
        "test_pod_lists.py": ("of_a_pod_that_is_not_the_jobs_only_its_name_and_state_are_kept",),
    },
    "losses while no replica acts": {
        "test_recent_losses.py": (
            "the_newest_of_a_namespace_are_remembered_once_each",
            "losses_of_one_namespace_do_not_make_those_of_another_forgotten",
        ),
        "test_handlers.py": (
            "losses_that_a_tenant_made_up_neither_displace_nor_delay_those_of_others",
        ),
    },
    "memory of a list": {
        "test_list_watch.py": ("what_a_cache_does_not_keep_is_not_held_while_it_is_listed_either",),
        "test_object_cache.py": (
            "lists_that_are_read_at_the_same_time_hold_together_as_much_as_one_cache",
        ),
    },
    "time of a list": {
        "test_handlers.py": (
            "what_cannot_be_listed_delays_no_job_for_long",
            "a_job_that_has_pods_does_not_wait_for_the_list_of_jobs",
        ),
        "test_list_watch.py": (
            "what_a_page_shows_does_not_wait_for_the_others",
            "a_list_that_takes_longer_than_its_version_is_kept_goes_on_and_ends",
        ),
    },
    "an agent's port": {
        "test_endpoint.py": (
            "who_floods_the_port_with_idle_connections_keeps_nobody_out",
            "requests_without_the_token_hold_no_connection",
            "a_token_that_is_no_text_is_a_wrong_one",
        ),
    },
    "the operator's two ports": {
        "test_operator_metrics.py": (
            "idle_connections_cost_few_threads_and_keep_no_scrape_out",
            "headers_without_end_are_not_kept",
            "a_request_that_comes_byte_by_byte_keeps_no_scrape_out",
        ),
        "test_hostile_pods_apiserver.py": ("idle_connections_to_the_port_of_probes_are_bounded",),
    },
    "series of a pod": {
        "test_chart.py": (
            "series_of_a_pod_cannot_name_another_namespace_or_anything_but_jobs",
            "series_of_a_pod_cannot_name_another_job_than_its_label",
            "an_answer_of_a_pod_has_a_bound",
        ),
        "test_alerts.py": ("it_fires_when_it_should_and_is_quiet_otherwise",),
    },
    "links among training data": {
        "test_files.py": (
            "a_link_among_the_files_of_a_volume_does_not_lead_to_a_file_of_the_pod",
            "nor_one_that_takes_the_place_of_a_file_that_was_found",
            "a_pipe_holds_nobody_up",
        ),
    },
    "last words of a program": {
        "test_failures.py": (
            "last_words_are_shown_in_one_printable_line",
            "any_last_message_of_a_program_is_read_without_an_error",
        ),
        "test_kubernetes_objects.py": (
            "what_registries_runtimes_and_schedulers_report_is_one_printable_line",
        ),
    },
    "the port of `regroup ui`": {
        "test_page_server.py": (
            "nothing_is_served_without_the_cookie",
            "the_token_counts_once_and_leaves_the_address",
            "a_name_that_resolves_to_loopback_is_refused",
            "only_get_is_answered",
        ),
        "test_page_access.py": ("nobody_has_a_session_before_the_exchange",),
        "test_browser_page.py": ("what_users_write_is_text",),
    },
    "names in a manifest": {
        "test_checkpoint_main.py": (
            "a_manifest_with_a_path_or_an_impossible_time_is_damaged",
            "what_a_manifest_says_is_shown_as_text",
        ),
    },
    "reports on a coordinator": {
        "test_coordinator_evidence.py": (
            "two_agents_on_other_nodes_have_to_report_no_answer_and_none_an_answer",
            "agents_that_never_knew_this_coordinator_count_only_where_the_operator_knew_it",
            "agents_do_not_count_while_many_coordinators_stopped_answering_at_once",
        ),
    },
    "API server's refusals": {
        "test_blindness_apiserver.py": (
            "a_refused_pod_keeps_no_coordinator_from_being_followed",
            "a_restart_writes_nothing_that_it_does_not_know",
        ),
        "test_faulty_server_apiserver.py": (
            "whatever_the_api_server_answers_jobs_are_whole_and_all_is_counted_once",
        ),
    },
    "Events of a job": {
        "test_event_limit.py": ("refusals_are_followed_by_pauses_that_grow_until_one_is_made",),
        "test_reconcile.py": (
            "a_quota_of_events_stops_nothing_else_and_is_not_asked_over_and_over",
            "a_coordinator_gets_no_more_events_made_than_the_limit",
            "no_reason_of_a_coordinator_leads_an_event_to_another_name_or_namespace",
        ),
    },
    "pod template": {
        "test_template_check.py": ("what_no_pod_can_be_is_refused_with_field_and_value",),
        "test_pod_check.py": ("what_kubernetes_or_the_coordinator_would_refuse_is_found_first",),
        "test_pod_types_apiserver.py": ("what_we_take_the_api_server_takes_and_the_reverse",),
    },
}
"""Boundary -> file, as the page names it -> its tests that attack the boundary."""


def rows(header: str) -> list[list[str]]:
    """The cells of each row of the table of the page with this header."""
    (table,) = re.findall(rf"^{re.escape(header)}\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


@cache
def functions(name: str) -> tuple[ast.Module, Mapping[str, Function]]:
    """The module of the one test file whose path ends with `name`, and its tests by name."""
    (path,) = [path for path in ROOT.glob("tests/**/test_*.py") if f"/{path}".endswith(f"/{name}")]
    module = ast.parse(path.read_text())
    found = [node for node in module.body if isinstance(node, Function)]
    return module, {node.name.removeprefix("test_"): node for node in found}


def cases(module: ast.Module, test: Function) -> int:
    """How often a test runs, at least: what it is parametrized with is counted where this module
    writes it out.
    """
    return math.prod(max(1, _length(module, given)) for given in _parameters(test))


def _parameters(test: Function) -> Iterator[ast.expr]:
    """What each `parametrize` of a test gives it."""
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
            yield decorator.args[1]


def _length(module: ast.Module, given: ast.expr) -> int:
    """Entries that are written out, also where `given` is the name of a constant."""
    if isinstance(given, ast.Name):
        return sum(_length(module, value) for value in _values(module, given.id))
    if isinstance(given, ast.Dict):
        return len(given.keys)
    entries = given.elts if isinstance(given, ast.List | ast.Tuple) else ()
    return sum(not isinstance(entry, ast.Starred) for entry in entries)


def _values(module: ast.Module, name: str) -> Iterator[ast.expr]:
    """What a constant of a module is."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if (
                found == name
            ):
                yield value


@pytest.mark.parametrize("header", [BOUNDS, BEYOND, TESTS])
def test_each_table_has_each_boundary_once_and_in_the_same_order(header: str) -> None:
    assert [boundary for boundary, *_ in rows(header)] == list(ATTACKS)


@pytest.mark.parametrize("header", [BOUNDS, BEYOND, TESTS])
def test_no_cell_of_a_table_is_empty(header: str) -> None:
    width = header.count("|") - 1
    assert not [row for row in rows(header) if len(row) != width or not all(row)]


def test_the_page_names_the_files_of_the_attacks() -> None:
    named = {boundary: re.findall(r"`([^`]+)`", cell) for boundary, cell in rows(TESTS)}
    assert named == {boundary: list(files) for boundary, files in ATTACKS.items()}


@pytest.mark.parametrize("boundary", ATTACKS)
def test_three_attacks_of_each_boundary_are_tests(boundary: str) -> None:
    attacks = 0
    for file, tests in ATTACKS[boundary].items():
        module, found = functions(file)
        assert set(tests) <= found.keys(), f"{file} has no such test"
        attacks += sum(cases(module, found[name]) for name in set(tests))
    assert attacks >= LEAST_ATTACKS
