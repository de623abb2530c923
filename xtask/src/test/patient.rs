//! Tests that wait for most of their time: for deadlines, for nodes that were stopped, for descriptors that there are
//! not. Some of them are on real processes, and would have the machine to themselves; beside each other they disturb
//! nobody, and take a fifth of the time.

/// How many of them run at once, whatever the machine: they use a twentieth of a core each.
pub(crate) const AT_ONCE: usize = 6;

/// Their names, in whatever binary they are.
pub(crate) const NAMES: [&str; 43] = [
    "a_busy_port_is_said",
    "a_circle_that_never_ends_is_an_error",
    "a_guest_that_is_stopped_falls_to_the_liveness_timeout",
    "a_handler_s_wait_ends_in_time_while_calls_that_descend_from_it_run",
    "a_process_that_is_no_guest_any_more_is_replaced_too",
    "a_shortage_of_descriptors_neither_spins_nor_stays",
    "a_stopped_peer_is_declared_dead_and_told_so",
    "a_stopped_rank_is_found_in_time",
    "a_stopped_scheduler_is_found_silent_by_every_node",
    "a_stopped_server_is_found_silent_by_every_node",
    "a_stopped_worker_counts_as_dead_after_the_timeout",
    "a_stopped_worker_is_found_silent_by_every_node",
    "a_stopped_worker_is_named_to_servers_and_workers",
    "f01_a_rank_that_is_stopped_while_it_leaves_fails_nobody",
    "f18_a_link_without_room_lives_on",
    "f23_a_worker_goes_on_when_its_parent_and_the_others_are_killed_at_once",
    "f27_a_peer_in_a_debugger_is_neither_killed_nor_declared_dead",
    "f42_a_checkpoint_is_written_to_its_end_when_others_die",
    "f42_a_checkpoint_stays_whole_when_the_worker_dies_that_writes_the_next",
    "f42_a_job_that_is_stopped_as_a_whole_goes_on",
    "f42_a_job_that_is_stopped_while_a_link_is_made_goes_on",
    "f42_one_more_that_dies_while_the_rest_shrinks_is_done_without",
    "f55_two_barriers_of_one_group_end_in_a_mismatch_that_names_both",
    "f62_a_send_may_give_up_at_any_moment",
    "f64_waits_for_a_store_name_key_round_and_who_is_missing",
    "f64_waits_for_members_say_who_is_missing",
    "f64_who_waits_for_ten_seconds_says_for_whom",
    "f86_a_server_that_has_no_descriptors_for_links_to_workers_says_so",
    "f86_who_has_no_descriptor_for_a_link_that_a_peer_makes_says_so",
    "f86_who_has_no_descriptor_for_a_link_that_it_makes_says_so",
    "f86_who_has_no_descriptors_for_links_to_servers_says_so",
    "f86_who_has_no_descriptors_for_the_links_of_an_exchange_says_so",
    "f86_who_has_no_descriptors_when_a_group_is_set_up_says_so",
    "f88_the_interface_is_listened_on",
    "f93_the_error_about_a_busy_root_hints_at_no_port_that_a_root_cannot_have",
    "idle_links_live_on",
    "insecure_permits_to_listen_everywhere",
    "kill_silent_kills_a_stopped_peer",
    "liveness_beat_shows_life",
    "liveness_timeout_is_how_long_silence_may_last",
    "silence_ends_everything_in_time",
    "who_waits_for_room_is_told_in_time_and_by_the_end",
    "whoever_goes_on_in_time_lives",
];

/// Whether a test, with its modules before its name, is one of them.
pub(crate) fn is_patient(test: &str) -> bool {
    test.rsplit("::").next().is_some_and(|name| NAMES.contains(&name))
}

/// The tests of these names, for cargo-nextest.
pub(crate) fn filter() -> String {
    format!("test(/(^|::)({})$/)", NAMES.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_known_by_its_name_in_every_module() {
        assert!(is_patient("idle_links_live_on") && is_patient("tcp::f18_a_link_without_room_lives_on"));
        assert!(!is_patient("idle_links_live") && !is_patient("idle_links_live_on::other"));
        assert!(filter().starts_with("test(/(^|::)(a_busy_port_is_said|"), "{}", filter());
    }
}
