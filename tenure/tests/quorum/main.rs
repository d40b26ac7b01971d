//! Five real Redis servers, of which some are killed, stopped, emptied, slow or not what they seem.

#![allow(clippy::unwrap_used)]

#[path = "../servers/support.rs"]
#[allow(dead_code)]
mod support;

mod doctor;
mod five;
mod loss;
mod outages;
