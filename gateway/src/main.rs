//! `gw`: the daemon beside salt-master and the command that talks to it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the commands, their output and exit codes |
//! | [`api`] | the local API's JSON |
//! | [`config`], [`master_config`] | `gw.toml`, and Salt's own configuration |
//! | [`record`] | the state machine of one dispatch: pure |
//! | [`journal`] | the durable records: SQLite |
//! | [`master`] | Salt's keys on disk and the two transports |
//! | [`daemon`] | `gw serve`: API, dispatch, intake of evidence, polling |

// A binary: `missing_docs` would have every `pub` inside it explained to nobody.
#![allow(missing_docs)]

mod api;
mod cli;
mod config;
mod daemon;
mod journal;
mod master;
mod master_config;
mod record;

fn main() -> std::process::ExitCode {
    cli::main()
}

/// An error and its causes in one line.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries repeat the cause in their own message.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
