//! `tenure completions` and `tenure man`: made from the definitions of the options.

use std::io::{self, Write};

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::{self, Args};
use crate::exit;

/// Prints a script that completes `tenure` in a shell.
pub fn completions(args: &args::Completions) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tenure", &mut script);
    io::stdout().write_all(&script)?;
    Ok(exit::DONE)
}

/// Prints the page of `tenure`, or of one of its commands.
pub fn man(args: &args::Man) -> Result<u8> {
    let mut tenure = Args::command();
    tenure.build();
    let page = match &args.command {
        Some(name) => page_of(&tenure, name)?,
        None => tenure,
    };
    let mut roff = Vec::new();
    Man::new(page).render(&mut roff)?;
    io::stdout().write_all(&roff)?;
    Ok(exit::DONE)
}

fn page_of(tenure: &Command, name: &str) -> Result<Command> {
    let command = tenure.find_subcommand(name).cloned();
    let names = || tenure.get_subcommands().map(Command::get_name).collect::<Vec<_>>().join(", ");
    Ok(command.ok_or_else(|| exit::usage(format!("man has no page for {name:?}: give one of {}", names())))?)
}
