//! What the store lists of a group, as a member reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::Present;
use crate::record::Record;

/// What a member says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Card {
    pub capacity: u32,
    pub place: String,
}

/// Whose a task is. Not the record's owner: that is for people, and two members may have the same.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sign {
    pub member: String,
}

/// The members and held tasks of a group.
#[derive(Debug, Default)]
pub struct View {
    pub members: Vec<Present>,
    /// Each with its member's id; without one, if somebody else has the name.
    pub held: BTreeMap<String, String>,
}

impl View {
    /// Reads the names below `group/`; what is not the crew's is left alone.
    pub fn read(records: &[Record], group: &str) -> Self {
        let mut view = Self::default();
        for record in records {
            let Some(name) = record.name.as_str().strip_prefix(group).and_then(|name| name.strip_prefix('/')) else {
                continue;
            };
            if let Some(task) = name.strip_prefix("tasks/") {
                let member = record.data::<Sign>().ok().flatten().map(|sign| sign.member);
                view.held.insert(task.to_owned(), member.unwrap_or_default());
            } else if let Some(id) = name.strip_prefix("members/") {
                view.members.extend(present(id, record));
            }
        }
        view
    }
}

/// A member that is no worker, because it joined for another reason, has no card.
fn present(id: &str, record: &Record) -> Option<Present> {
    let card = record.data::<Card>().ok()??;
    Some(Present { id: id.to_owned(), place: card.place, capacity: card.capacity, present_for: record.held_for })
}
