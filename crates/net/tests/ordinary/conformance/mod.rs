//! One suite for every link. A link joins by implementing [`pairs::Pairs`] and one line at the end of this file.
//!
//! Every test has a limit of its own; one that takes longer ends the whole run with its name, since a thread that hangs
//! cannot be ended.

mod big;
mod content;
mod cost;
mod ends;
mod matching;
mod mixed;
mod modes;
mod order;
mod pairs;
mod places;
mod pressure;
mod shapes;
mod trouble;
mod urgent;
mod waits;
mod watch;

macro_rules! conformance {
    ($link:ident, $pairs:expr) => {
        mod $link {
            conformance! { @tests $link, $pairs,
                order::mixed_sizes_both_ways_at_once 120;
                order::four_senders_and_four_receivers 120;
                order::both_sides_send_64_mib_before_either_receives 60;
                shapes::no_elements_and_no_dimensions 30;
                shapes::every_dtype_keeps_its_size 30;
                shapes::control_alone_and_beside_a_tensor 30;
                shapes::up_to_three_hundred_parts 60;
                shapes::beyond_the_limits_nothing_is_sent 30;
                places::posted_before_and_after_the_arrival 60;
                places::what_does_not_fit_is_refused_and_the_link_goes_on 30;
                places::a_place_has_one_writer 30;
                big::one_message_of_a_gibibyte 300;
                modes::copy_is_captured_before_send_returns 60;
                modes::a_copy_whose_sender_gives_up_is_captured 60;
                modes::move_needs_the_only_handle_and_gives_it_away 60;
                modes::move_copies_nothing 60;
                modes::share_aliases_or_is_unsupported 30;
                matching::any_source_takes_from_every_link 60;
                matching::tags_and_contexts_are_kept_apart 30;
                matching::unexpected_messages_wait_in_order 30;
                matching::a_cancelled_receive_takes_nothing 30;
                matching::a_late_receive_is_taken_back 30;
                pressure::a_receiver_that_takes_nothing_pushes_back 240;
                pressure::f15_what_waits_for_room_is_bounded_in_bytes 60;
                ends::what_was_sent_before_the_close_arrives 60;
                ends::close_ends_everything_that_waits 30;
                ends::a_dropped_peer_is_named 30;
                ends::a_close_in_the_middle_of_traffic_loses_nothing_that_was_sent 60;
                waits::works_are_awaited_and_call_back 30;
                waits::a_callback_may_send_again 60;
                waits::an_interrupt_ends_the_wait_alone 30;
                urgent::f18_urgent_words_overtake_64_mib_of_queued_data 60;
                urgent::f18_urgent_words_pass_a_stream_that_is_half_sent 60;
                urgent::f18_urgent_words_pass_a_paused_message 60;
                urgent::f18_urgent_words_of_any_length_arrive_whole_and_in_order 60;
                urgent::f18_urgent_and_other_words_keep_their_orders_both_ways 60;
                urgent::f18_nothing_urgent_is_lost_at_an_orderly_end 60;
                urgent::f18_a_flood_of_urgent_words_is_bounded 110;
                urgent::f18_a_link_without_room_lives_on 60;
                urgent::f15_urgent_words_are_bounded_in_bytes 60;
                cost::two_thousand_kept_tensors_do_not_stop_the_traffic 120;
                cost::an_idle_node_is_not_woken 30;
            }
        }
    };
    (@tests $link:ident, $pairs:expr, $($group:ident :: $test:ident $limit_s:literal;)*) => {
        $(#[test]
        fn $test() {
            let name = concat!(stringify!($link), "::", stringify!($test));
            crate::conformance::watch::limited(name, $limit_s, || crate::conformance::$group::$test(&$pairs));
        })*
    };
}

conformance!(inproc, crate::conformance::pairs::Inproc);
conformance!(shm, crate::conformance::pairs::Shm);
conformance!(tcp, crate::conformance::pairs::Tcp);
conformance!(chaos_inproc, crate::conformance::pairs::Chaotic(crate::conformance::pairs::Inproc));
conformance!(chaos_shm, crate::conformance::pairs::Chaotic(crate::conformance::pairs::Shm));
conformance!(chaos_tcp, crate::conformance::pairs::Chaotic(crate::conformance::pairs::Tcp));
