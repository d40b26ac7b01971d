//! Every promise as a function that any store can be put through: ours, and yours.
//!
//! A store of your own is tested by a few lines: say how to make instances of it, and run what is in [`PROMISES`].
//!
//! ```
//! use std::sync::Arc;
//! use tenure::conformance::{PROMISES, Subject};
//! use tenure::store::memory::MemoryStore;
//!
//! let store = MemoryStore::new();
//! let subject = Subject::new(move || Arc::new(store.clone()));
//! let promise = &PROMISES[0];
//! assert_eq!(promise.name, "excludes_a_second_holder");
//! promise.run(&subject);
//! ```
//!
//! Promises fail by panicking, with what was found. They may run at the same time on one store, and use names that
//! begin with `conformance/`. The promises about real processes start the test program again: they need
//! [`Subject::url`], and [`child_role`] at the top of its `main`.

use std::pin::Pin;
use std::time::Duration;

mod batches;
mod cancel;
mod checker;
mod contention;
mod crew;
mod crew_failures;
mod edges;
mod events;
mod exclusion;
mod failures;
mod faulty;
mod fleet;
mod gate;
mod history;
mod load;
mod loss;
mod members;
mod names;
mod order;
mod processes;
mod recipes_election;
mod recipes_elector;
mod recipes_processes;
mod shutdown;
mod slow;
mod subject;
mod support;
mod time;
mod tokens;
mod waiting;

pub use checker::{Verdict, check};
pub use faulty::{Call, Fault, Faulty};
pub use gate::Gate;
pub use history::{History, Operation, What};
pub use processes::{Child, child_role};
pub use subject::Subject;

/// Far longer than any promise takes: one that hangs is broken.
const LIMIT: Duration = Duration::from_secs(120);

/// Something that every store promises.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The promise, as a sentence; also the function's name.
    pub name: &'static str,
    /// What checking it takes.
    pub needs: Needs,
    check: for<'a> fn(&'a Subject) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// What checking a promise takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The store.
    Store,
    /// A store that other processes find by its URL.
    Url,
}

impl Promise {
    /// Whether the subject has what it takes.
    pub fn applies_to(&self, subject: &Subject) -> bool {
        self.needs == Needs::Store || subject.location().is_some()
    }

    /// Checks the promise, on a runtime of its own.
    ///
    /// # Panics
    /// If the promise is broken.
    pub fn run(&self, subject: &Subject) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        runtime.block_on(async {
            let kept = tokio::time::timeout(LIMIT, (self.check)(subject)).await;
            assert!(kept.is_ok(), "{} is not settled after {LIMIT:?}", self.name);
        });
    }
}

macro_rules! promises {
    ($($module:ident ($needs:ident) { $($promise:ident),+ $(,)? })+) => {
        $(pub use $module::{$($promise),+};)+

        /// All promises. (One that is missing here is dead code, which the compiler reports.)
        pub const PROMISES: &[Promise] = &[$($(Promise {
            name: stringify!($promise),
            needs: Needs::$needs,
            check: |subject| Box::pin($promise(subject)),
        }),+),+];
    };
}

promises! {
    exclusion (Store) {
        excludes_a_second_holder,
        busy_says_who_and_how_long,
        try_lock_on_a_held_name_is_none,
        a_timed_out_acquire_says_who_holds,
        refused_reentry_says_already_held,
        release_is_idempotent,
        a_late_release_changes_nothing,
    }
    tokens (Store) {
        tokens_increase_across_release,
        tokens_increase_across_expiry,
        tokens_increase_across_prune,
        the_same_lease_retried_keeps_its_token,
        only_rotation_raises_a_held_token,
        a_renewal_of_an_older_term_is_refused,
        rotation_raises_the_token_once_a_period,
    }
    time (Store) {
        expires_after_its_ttl_and_not_before,
        renewal_extends,
        an_expired_term_is_not_revived,
        a_renewal_of_a_taken_name_says_who_has_it,
        grace_keeps_an_expired_name_closed,
        grace_does_not_close_a_released_name,
        max_hold_tells_the_holder_and_frees_the_name,
    }
    waiting (Store) {
        a_release_wakes_a_waiter,
        a_release_wakes_a_waiter_in_the_same_process,
        an_expiry_wakes_a_waiter,
        waiters_in_one_process_are_served_in_order,
    }
    cancel (Store) {
        a_dropped_acquire_leaves_nothing,
        an_acquire_dropped_while_its_claim_is_under_way_leaves_nothing,
        an_acquire_dropped_while_its_retry_is_under_way_leaves_nothing,
        an_acquire_dropped_after_its_grant_leaves_nothing,
        an_acquire_dropped_while_waiting_leaves_nothing,
        a_timed_out_acquire_leaves_nothing,
        a_claim_granted_after_its_asker_gave_up_is_released,
        every_attempt_of_a_claim_is_followed_up,
        a_late_duplicate_of_a_claim_is_released,
        a_dropped_guard_frees,
        a_guard_dropped_without_a_runtime_frees,
        a_panic_in_the_holder_frees,
        a_dropped_release_goes_on,
        the_blocking_forms_wait_and_free,
    }
    processes (Url) {
        a_guard_held_at_the_end_of_main_frees,
        a_guard_held_by_a_task_at_the_end_of_main_frees,
        a_panic_in_main_frees,
        a_killed_process_frees_when_its_term_is_over,
        contending_processes_yield_a_history_without_overlap,
    }
    loss (Store) {
        loss_is_signalled_when_the_store_hangs,
        loss_is_signalled_when_the_store_fails,
        loss_is_signalled_when_the_store_refuses,
        loss_is_signalled_when_replies_are_lost,
        a_single_failed_renewal_loses_nothing,
        a_blocked_runtime_loses_nothing,
        an_ordinary_release_is_not_loss,
        a_retried_release_is_not_loss,
        eviction_is_told_on_the_next_renewal,
        eviction_is_told_on_release,
        eviction_by_the_same_process_is_told_at_once,
        a_taken_name_is_told_with_its_new_holder,
        at_risk_is_told_before_loss_and_taken_back,
        work_is_dropped_on_loss,
    }
    failures (Store) {
        an_acquire_rides_out_failures_that_pass,
        a_refusal_for_good_is_told_at_once,
        an_acquire_on_a_failing_store_says_why,
        a_release_that_fails_is_told,
        a_dead_engine_is_told_as_loss,
    }
    edges (Store) {
        a_guard_dropped_at_its_deadline_is_lost,
        a_loss_is_never_taken_back,
        a_lost_term_that_was_renewed_unheard_is_released,
        a_search_for_an_orphan_does_not_starve_renewals,
        a_try_behind_a_failing_waiter_is_answered,
        a_waiter_behind_a_try_asks_for_itself,
        max_hold_counts_from_the_hand_out,
    }
    slow (Store) {
        a_slow_grant_is_never_handed_out_expired,
        a_slow_grant_is_renewed_before_it_is_handed_out,
    }
    names (Store) {
        odd_names_are_kept_apart_and_intact,
        list_pages_in_order,
        owner_and_data_are_kept_intact,
        data_of_any_size_is_kept,
        owner_and_data_end_with_their_term,
    }
    batches (Store) {
        requests_that_arrive_during_a_call_travel_together,
        a_thousand_names_fit_one_batch,
        a_full_batch_is_answered_in_order,
        a_batch_in_which_some_are_busy_grants_the_rest,
        one_bad_entry_does_not_spoil_its_batch,
        renewals_are_batched,
    }
    order (Store) {
        a_claim_waits_for_the_release_before_it,
        a_claim_waits_for_a_release_that_is_made_again,
        a_release_waits_for_the_renewal_before_it,
        a_search_for_an_orphan_waits_for_the_renewal_before_it,
    }
    load (Store) {
        a_name_is_never_in_two_calls_at_once,
        a_restless_process_leaves_nothing,
    }
    shutdown (Store) {
        shutdown_tells_holders_and_waits_for_them,
        shutdown_refuses_new_acquires,
        shutdown_releases_what_is_left,
        a_hurried_shutdown_shortens_the_one_before,
        shutdown_says_what_was_cut_off,
        shutdown_returns_what_could_not_be_released,
    }
    events (Store) {
        events_tell_of_an_ordinary_term,
        events_tell_of_a_loss,
        events_tell_of_contention_and_end_with_the_engine,
    }
    contention (Store) {
        contention_yields_a_history_without_overlap,
        contention_on_a_faulty_store_yields_a_history_without_overlap,
    }
    members (Store) {
        a_member_is_listed_until_it_leaves,
        a_member_leaves_when_a_shutdown_begins,
        a_member_that_is_cut_off_is_told_and_gone_after_its_ttl,
        an_evicted_member_is_told,
        observers_are_told_of_each_change_once,
        bad_members_options_are_refused,
    }
    crew (Store) {
        a_crew_shares_its_tasks_out_as_members_come_and_go,
        a_crew_heeds_unequal_capacities,
        a_crew_takes_tasks_added_and_removed_while_it_runs,
        a_crew_releases_a_task_when_its_worker_has_ended,
        a_flapping_instance_does_not_disturb_a_crew,
        a_crew_drops_the_worker_of_a_lost_task,
        a_crew_starts_a_worker_again_that_has_ended,
        a_crew_member_that_was_evicted_joins_again,
        a_crew_member_that_was_cut_off_comes_back,
        a_crew_leaves_nothing_behind,
        bad_crew_options_are_refused,
    }
    crew_failures (Store) {
        a_crew_that_cannot_see_the_store_is_patient,
        a_crew_member_that_cannot_join_again_is_patient,
        a_crew_stops_while_it_waits_for_the_store,
        a_crew_on_a_faulty_store_runs_no_task_twice,
        a_crew_survives_a_panic_on_the_way_to_a_worker,
        a_crew_that_never_works_is_told_to_its_handles,
        a_crew_that_was_cut_off_says_so,
    }
    fleet (Url) {
        a_crew_of_processes_moves_only_what_it_must_when_they_die_and_return,
        a_paused_instance_of_a_crew_is_refused_by_the_fence,
    }
    recipes_election (Store) {
        a_leader_is_followed_when_it_resigns,
        the_leaders_work_is_dropped_on_loss,
        a_leader_steps_down_when_its_work_has_ended,
        a_leader_that_does_not_step_down_is_cut_off,
        a_leader_whose_work_fails_campaigns_again,
        a_dropped_lead_frees,
        leading_ends_with_a_reason,
        observers_see_each_term_once_and_in_order,
        a_dropped_look_of_an_observer_loses_nothing,
    }
    recipes_elector (Store) {
        one_process_wins_a_key,
        a_key_is_not_started_twice,
        a_stopped_task_ends_before_its_key_is_free,
        a_task_that_does_not_stop_is_cut_off,
        a_stop_releases_again_what_failed,
        a_task_that_ends_or_panics_frees_its_key,
        a_task_is_told_with_two_intervals_left,
        a_task_whose_key_is_lost_is_dropped,
        closing_an_elector_stops_all,
        a_dropped_elector_frees,
        a_shutdown_ends_an_electors_tasks,
        an_elector_refuses_bad_input,
        a_spawner_runs_the_tasks,
    }
    recipes_processes (Url) {
        a_process_told_to_end_leaves_nothing,
        a_process_told_to_end_twice_hurries,
    }
}
