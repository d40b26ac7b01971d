//! What tests need around them: private servers that can be killed, paused and started again.

pub mod services;
pub mod tools;
