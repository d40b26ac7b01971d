//! One file a command.

mod doctor;
mod evict;
mod fence;
mod generate;
mod lead;
mod ls;
mod prune;
mod run;
mod schema;
mod show;
mod stats;

use anyhow::Result;

use crate::args::{Command, Globals};

/// Carries out a command, and returns its exit code.
pub async fn run(command: Command, globals: &Globals) -> Result<u8> {
    match command {
        Command::Run(args) => run::run(&args, globals).await,
        Command::Lead(args) => lead::lead(&args, globals).await,
        Command::Ls(args) => ls::ls(&args, globals).await,
        Command::Show(args) => show::show(&args, globals).await,
        Command::Evict(args) => evict::evict(&args, globals).await,
        Command::Fence(args) => fence::fence(&args, globals).await,
        Command::Stats => stats::stats(globals).await,
        Command::Prune(args) => prune::prune(&args, globals).await,
        Command::Schema(args) => schema::schema(&args, globals),
        Command::Doctor => doctor::doctor(globals).await,
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    }
}
