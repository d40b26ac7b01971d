//! What tests need around them: private servers that can be killed, paused and started again, and a proxy that loses bytes.

pub mod proxy;
pub mod services;
pub mod tools;
