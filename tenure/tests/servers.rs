//! What only real servers can show: they are killed, paused, filled up and cut off, and their rows are locked by others.
//!
//! Each test runs on every kind of server that it makes sense for: one entry in `kinds`. A kind whose tools are missing is skipped, visibly; if
//! `TENURE_TEST_REQUIRE` lists it, that is a failure.

#![allow(clippy::unwrap_used)]

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};
use xtask::tools;

#[path = "servers/bare.rs"]
mod bare;
#[path = "servers/child.rs"]
mod child;
#[path = "servers/crowds.rs"]
mod crowds;
#[path = "servers/fake.rs"]
mod fake;
#[path = "servers/kind.rs"]
mod kind;
#[path = "servers/network.rs"]
mod network;
#[path = "servers/outages.rs"]
mod outages;
#[path = "servers/refusals.rs"]
mod refusals;
#[path = "servers/rows.rs"]
mod rows;
#[path = "servers/support.rs"]
mod support;
#[path = "servers/tables.rs"]
mod tables;
#[path = "servers/terms.rs"]
mod terms;

#[path = "servers/etcd.rs"]
mod etcd;
#[path = "servers/mariadb.rs"]
mod mariadb;
#[path = "servers/mongodb.rs"]
mod mongodb;
#[path = "servers/pooler.rs"]
mod pooler;
#[path = "servers/push.rs"]
mod push;
#[path = "servers/redis_cluster.rs"]
mod redis_cluster;
#[path = "servers/redis_data.rs"]
mod redis_data;
#[path = "servers/redis.rs"]
mod redis_server;
#[path = "servers/redis_users.rs"]
mod redis_users;
#[path = "servers/settings.rs"]
mod settings;
#[path = "servers/transactions.rs"]
mod transactions;

use kind::Kind;

/// Tests mostly wait: more of them at once than there are processors.
const THREADS: usize = 12;

/// A test, on one kind of server.
#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    run: for<'a> fn(&'a Kind) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

macro_rules! tests {
    ($($module:ident { $($test:ident),+ $(,)? })+) => {
        &[$($(Test { name: stringify!($test), run: |kind| Box::pin($module::$test(kind)) }),+),+]
    };
}

const ON_EVERY_SERVER: &[Test] = tests! {
    outages {
        a_crash_shorter_than_the_term_loses_nothing,
        a_server_down_for_longer_than_the_term_is_told_with_its_error,
        a_server_paused_for_longer_than_the_term_is_told,
    }
    network {
        a_silent_cut_shorter_than_the_term_loses_nothing,
        lost_requests_are_told_and_recovered_from,
        lost_replies_are_told_and_recovered_from,
        a_black_hole_is_told_and_recovered_from,
        a_slow_network_loses_nothing,
        what_arrives_when_the_term_is_over_changes_nothing,
        a_claim_whose_reply_was_lost_is_granted_once,
        an_acquire_dropped_after_its_reply_was_lost_leaves_nothing,
        an_acquire_timed_out_after_its_reply_was_lost_leaves_nothing,
    }
    crowds {
        sixteen_processes_exclude_each_other_and_all_get_their_turn,
    }
    refusals {
        a_server_that_never_answers_is_told,
        a_refused_certificate_is_told,
    }
    terms {
        rotation_raises_the_token_once_a_period,
    }
};

const ON_SQL: &[Test] = tests! {
    outages {
        a_server_without_free_connections_loses_nothing,
    }
    rows {
        a_name_whose_row_was_locked_gets_its_full_term,
        a_locked_row_delays_none_of_its_batch,
        a_retry_at_a_locked_row_is_not_granted,
        a_held_name_whose_row_is_locked_for_a_while_is_kept,
        a_claim_whose_client_was_killed_at_a_locked_row_leaves_nothing,
        a_claim_whose_client_was_killed_at_a_new_row_leaves_nothing,
    }
    crowds {
        many_that_start_at_once_make_the_table_together,
    }
    tables {
        a_token_ahead_of_the_clock_still_rises,
        a_dropped_table_is_told_at_once_and_recovered_from,
        rights_on_the_table_are_enough,
        a_role_that_lacks_a_right_is_told_which,
        a_role_that_may_not_make_the_table_is_told,
    }
    refusals {
        each_refusal_says_what_is_wrong_and_no_password,
    }
    settings {
        a_usual_server_weakens_nothing,
    }
    terms {
        heartbeats_go_on_while_the_runtime_of_the_pool_is_blocked,
    }
};

const ON_POSTGRES: &[Test] = tests! {
    crowds {
        many_that_start_at_once_make_the_schema_together,
    }
    push {
        only_a_contended_release_notifies,
        a_release_wakes_a_waiter_sooner_than_its_poll,
        a_terminated_listener_comes_back,
        a_silenced_listener_delays_no_longer_than_the_poll,
    }
    pooler {
        a_pooler_is_found_out_and_names_are_held_through_it,
        contention_through_a_pooler_has_no_overlap,
        a_pooler_without_tls_is_told,
    }
    transactions {
        a_takeover_waits_for_the_holders_commit,
        an_expired_name_waits_for_the_holders_commit,
        a_transaction_may_be_longer_than_the_term,
        every_isolation_level_will_do,
        a_term_that_is_over_is_told,
        guards_and_transactions_that_do_not_match_are_refused,
    }
    settings {
        a_server_that_may_forget_grants_is_told,
        notifications_that_arrive_are_told,
        another_default_isolation_changes_nothing,
    }
};

const ON_MARIADB: &[Test] = tests! {
    mariadb {
        settings_that_weaken_a_promise_are_told,
        other_defaults_change_nothing,
        a_name_that_another_inserts_delays_nobody,
        much_data_at_once_is_kept,
    }
};

const ON_ETCD: &[Test] = tests! {
    etcd {
        names_with_one_ttl_share_a_lease,
        a_lease_revoked_by_hand_is_told,
        a_claim_on_a_lease_that_is_gone_takes_another,
        a_lease_lost_by_our_own_clock_is_not_used_again,
        a_term_counts_from_the_keep_alive_of_its_lease,
        a_key_deleted_by_hand_is_told,
        a_key_that_nobody_holds_is_deleted,
        a_term_that_was_held_too_long_does_not_live_on_with_its_lease,
        a_name_that_passed_to_another_during_a_renewal_is_theirs,
        a_name_that_is_not_renewed_ends_though_its_lease_lives_on,
        a_grace_is_kept_though_its_lease_lives_on,
        a_cluster_that_lost_its_data_gives_larger_tokens,
        a_ttl_below_the_floor_is_refused,
        a_floor_that_is_higher_is_found_out,
        each_refusal_says_what_is_wrong,
        a_login_outlives_its_token,
        a_user_who_may_not_is_told,
        a_watch_comes_back_and_says_what_it_may_have_missed,
        much_data_at_once_is_kept,
        what_is_not_ours_is_told,
        a_leader_killed_loses_nothing,
        a_leader_stopped_loses_nothing,
        an_endpoint_that_is_gone_loses_nothing,
        an_endpoint_that_is_cut_off_loses_nothing,
        a_majority_that_is_gone_is_told_and_recovered_from,
        a_doctor_tells_what_weakens_the_promises,
    }
};

const ON_MONGODB: &[Test] = tests! {
    crowds {
        many_that_start_at_once_make_the_table_together,
    }
    mongodb {
        what_looks_like_a_path_is_kept_as_it_is,
        a_server_without_a_clock_in_updates_is_refused,
        what_a_server_alone_can_lose_is_told,
        a_weak_write_concern_is_told,
        a_collection_that_folds_names_is_refused,
        users_and_passwords_are_checked,
        a_batch_of_releases_tells_which_were_over,
        a_late_renewal_takes_no_time_away,
        refusals_say_what_is_wrong,
        new_names_that_many_claim_at_once_go_to_one,
        a_name_that_another_inserts_is_claimed_again,
        connections_that_are_never_finished_stop_nothing,
        a_write_that_no_majority_acknowledges_is_not_granted,
        writes_ask_for_a_majority_and_have_a_limit,
    }
    mariadb {
        much_data_at_once_is_kept,
    }
    terms {
        heartbeats_go_on_while_the_runtime_of_the_pool_is_blocked,
    }
};

const ON_REDIS: &[Test] = tests! {
    redis_server {
        heartbeats_go_on_while_the_clients_runtime_is_blocked,
        a_claim_that_arrives_late_is_not_granted,
        scripts_that_were_flushed_are_sent_again,
        a_server_without_free_connections_loses_nothing,
        a_full_server_is_told_and_recovered_from,
        each_error_is_told_from_the_others,
        settings_that_weaken_a_promise_are_told,
        only_a_contended_release_is_published,
        a_release_wakes_a_waiter_sooner_than_its_poll,
        a_killed_listener_comes_back,
        a_silenced_listener_delays_no_longer_than_the_poll,
        prefixes_and_databases_are_apart,
        a_look_after_a_restart_succeeds,
    }
    redis_data {
        a_server_restarted_empty_is_told_and_tokens_rise,
        a_flushed_server_is_told_and_tokens_rise,
        a_promoted_replica_that_lacks_a_grant_lets_two_hold_and_the_fence_tell_them_apart,
        a_grant_that_a_replica_lacks_does_not_count,
        a_renewal_that_a_replica_lacks_does_not_count,
        tokens_rise_though_the_clock_is_behind_them,
        what_expired_long_ago_is_forgotten,
        what_is_under_the_keys_already_is_told,
    }
    redis_cluster {
        a_cluster_keeps_names_wherever_they_are_asked_for,
        a_cluster_that_fails_over_loses_nothing,
    }
    redis_users {
        the_rights_that_the_schema_grants_are_enough,
        a_user_that_lacks_a_right_is_told,
        each_refusal_of_redis_says_what_is_wrong_and_no_password,
        a_replica_is_told,
    }
};

/// All of them.
fn kinds() -> Vec<Arc<Kind>> {
    [Kind::postgres(), Kind::mysql(), Kind::mongodb(), Kind::redis(), Kind::etcd()].into_iter().map(Arc::new).collect()
}

fn main() -> ExitCode {
    // A child is over when this `main` is, and with it what it holds.
    let child = tenure::conformance::child_role(|url| tenure::connect(url));
    if child.is_some() || child::play() {
        return ExitCode::SUCCESS;
    }
    sqlx::any::install_default_drivers();
    let kinds = kinds();
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let trials = kinds.iter().flat_map(trials).collect();
    // The shared servers stop when `kinds` goes, after the last test.
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(kind: &Arc<Kind>) -> Vec<Trial> {
    if tools::skip(kind.name, kind.tools) {
        let missing = format!("missing: {:?}", tools::missing(kind.tools));
        let skipped = move || Ok(Completion::ignored_with(missing));
        return vec![Trial::ignorable_test(format!("{}::is_there", kind.name), skipped)];
    }
    let pooled = if kind.has_pooler { pooler::promises(kind) } else { Vec::new() };
    kind.tests.iter().copied().flatten().map(|test| trial(kind, *test)).chain(pooled).collect()
}

fn trial(kind: &Arc<Kind>, test: Test) -> Trial {
    let kind = kind.clone();
    Trial::test(format!("{}::{}", kind.name, test.name), move || {
        support::run(test.name, (test.run)(&kind));
        Ok(())
    })
}
