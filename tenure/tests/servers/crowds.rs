//! Many processes at once.

use std::future::IntoFuture as _;

use tokio::task::JoinSet;

use super::child::{Child, TURNS};
use super::kind::Kind;
use super::support::{connect, is_closed_to, soon, unique, with};

const PROCESSES: usize = 16;

/// When a process held the name, by the machine's clock.
struct Turn {
    token: u64,
    from: u128,
    to: u128,
}

impl Turn {
    fn parse(line: &str) -> Self {
        let mut numbers = line.split(' ').map(|number| number.parse::<u128>().unwrap());
        let mut next = || numbers.next().unwrap();
        Self { token: u64::try_from(next()).unwrap(), from: next(), to: next() }
    }
}

/// No two hold the name at a time, tokens rise strictly, and nobody goes without.
pub async fn sixteen_processes_exclude_each_other_and_all_get_their_turn(kind: &Kind) {
    let (url, name) = (kind.shared().url(), unique("crowd"));
    let mut children: Vec<_> = (0..PROCESSES).map(|_| Child::start("turns", &url, &name)).collect();
    let mut turns = Vec::new();
    for child in &mut children {
        let before = turns.len();
        while let Some(line) = child.line().await {
            turns.push(Turn::parse(&line));
        }
        assert_eq!(turns.len() - before, TURNS, "a process didn't get all its turns");
    }
    turns.sort_by_key(|turn| turn.from);
    for pair in turns.windows(2) {
        assert!(pair[0].to <= pair[1].from, "tokens {} and {} were held at a time", pair[0].token, pair[1].token);
        assert!(pair[0].token < pair[1].token, "token {} follows {}", pair[1].token, pair[0].token);
    }
}

pub async fn many_that_start_at_once_make_the_table_together(kind: &Kind) {
    let table = unique("crowd");
    start_at_once(&with(&kind.shared().url(), &format!("tenure.table={table}"))).await;
}

pub async fn many_that_start_at_once_make_the_schema_together(kind: &Kind) {
    let schema = unique("crowd");
    start_at_once(&with(&kind.shared().url(), &format!("tenure.schema={schema}"))).await;
}

/// On a database without the table: all find it made, and the same.
async fn start_at_once(url: &str) {
    let mut children: Vec<_> = (0..3).map(|_| Child::start("start", url, "child")).collect();
    let mut starting = JoinSet::new();
    for _ in 0..10 {
        starting.spawn(tenure::connect(url).into_future());
    }
    let all = soon("all start", starting.join_all()).await;
    let all: Vec<_> = all.into_iter().collect::<Result<_, _>>().unwrap();
    for child in &mut children {
        assert!(child.line().await.is_some(), "a process could not start");
    }
    let guard = soon("a name in the new table", all[0].lock("name")).await.unwrap();
    for locks in &all[1..] {
        assert!(is_closed_to(locks, "name").await, "they are not on the same table");
    }
    assert!(is_closed_to(&connect(url).await, "name").await);
    guard.release().await.unwrap();
}
