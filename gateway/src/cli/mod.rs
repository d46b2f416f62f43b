//! The commands: arguments in, one record or one error out, an exit code that says which.

mod client;
mod exit;
mod follow;
mod render;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use gw_wire::id::RequestId;
use gw_wire::state_data;

use crate::api::{PublishBody, RecordView};
use crate::config::Config;
use crate::master_config::MasterConfig;
use client::{Client, ClientError};
use exit::Exit;

/// Publish Salt jobs at most once, and know how each one ended.
#[derive(Parser)]
#[command(name = "gw", version, max_term_width = 100, after_long_help = EXIT_CODES, propagate_version = true)]
struct Cli {
    /// The gateway's configuration [default: /etc/gw/gw.toml, if it exists].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's socket [default: the configuration's, else /run/gw/gw.sock].
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes of publish and poll say where the record stands:
  0  succeeded: every state ran and passed
  1  an error of gw itself (I/O, an answer that makes no sense)
  2  usage or bad input; nothing was recorded
  3  failed: the states ran and at least one did not pass
  4  unresolved: sent, perhaps sent, still running, or its outcome is unknown
  5  not sent, or refused by the executor: it did not run
  6  conflict: the request id is bound to other values
  7  the daemon is not running
show and list exit with 0 when they could show what was asked for.

See docs/operating.md for every error code and what to do.";

#[derive(Subcommand)]
enum Command {
    /// Run the daemon (beside salt-master, as the user that may read its keys).
    #[command(after_long_help = "\
Examples:
  gw serve
  gw --config /etc/gw/gw.toml serve 2>> /var/log/gw.jsonl

Logs are JSON lines on standard error; docs/log-schema.md describes them. GW_LOG sets the level
(error, warn, info, debug). The daemon is ready when `curl --unix-socket /run/gw/gw.sock
http://gw/v1/health` answers. SIGTERM stops it; a SIGKILL loses nothing that was reported.")]
    Serve,
    /// Publish one job to one minion, once.
    #[command(after_long_help = concat!("\
Examples:
  gw publish client-0b0e4567-e89b-42d3-a456-426614174000 --profile configure --wait
  gw publish client-0b0e4567-e89b-42d3-a456-426614174000 --profile custom --state-data high.json
  gw publish \"$MINION\" --profile production --request-id \"$(uuidgen)\" --json

The same request id with the same values never publishes again: it gives the record, so a caller that
was cut off asks again with the same id. Without --wait the command returns when the job has left, and
exits with 4 (unresolved): its outcome is not known yet.

See `gw --help` for the exit codes."))]
    Publish(Publish),
    /// Ask the minion now what became of a job, and show the record.
    #[command(after_long_help = "\
Examples:
  gw poll 123e4567-e89b-42d3-a456-426614174000
  gw poll 123e4567-e89b-42d3-a456-426614174000 --json | jq -r .state

The answer is signed by the minion. Silence changes nothing. Exit codes as for publish.")]
    Poll(One),
    /// Show a record and its history, from the journal alone.
    #[command(after_long_help = "\
Examples:
  gw show 123e4567-e89b-42d3-a456-426614174000
  gw show 123e4567-e89b-42d3-a456-426614174000 --json | jq .receipt")]
    Show(One),
    /// List records, the newest first.
    #[command(after_long_help = "\
Examples:
  gw list
  gw list --state unknown
  gw list --minion client-0b0e4567-e89b-42d3-a456-426614174000 --json | jq -r .request_id

With --json one object a line.")]
    List(List),
    /// Print a shell completion script.
    #[command(after_long_help = "\
Examples:
  gw completion bash > /etc/bash_completion.d/gw
  gw completion zsh > \"${fpath[1]}/_gw\"")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(clap::Args)]
struct Publish {
    /// The minion's id.
    minion: String,
    /// What to apply: configure, production, volume_resize, credentials, custom, or a profile of the site's own.
    #[arg(long)]
    profile: String,
    /// A UUID in lower case with hyphens that names this request for ever [default: a random one].
    #[arg(long, value_name = "UUID")]
    request_id: Option<String>,
    /// High data for profile custom as JSON, at most 128 KiB; - for standard input.
    #[arg(long, value_name = "FILE")]
    state_data: Option<PathBuf>,
    /// Follow the job to its end, or for so many seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    wait: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct One {
    /// The request's id.
    request_id: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct List {
    /// Records of this minion only.
    #[arg(long, value_name = "ID")]
    minion: Option<String>,
    /// Records in this state only.
    #[arg(long)]
    state: Option<String>,
    /// At most so many, 1 to 10000.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Why a command ended without a record.
enum Failure {
    /// Something else than the daemon said so.
    Local(anyhow::Error, Exit),
    /// The daemon, or the way to it.
    Client(ClientError),
    /// As before, about a request that may have been recorded, or is.
    Request {
        error: ClientError,
        request_id: String,
        exit: Exit,
    },
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Failure::Client(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Local(error.into(), Exit::Error)
    }
}

fn usage(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Local(error.into(), Exit::Usage)
}

/// Parses the command line, runs the command, and gives its exit code.
pub fn main() -> ExitCode {
    // clap itself exits with 2 on bad usage and with 0 after --help.
    let cli = Cli::parse();
    let json = match &cli.command {
        Command::Publish(args) => args.json,
        Command::Poll(args) | Command::Show(args) => args.json,
        Command::List(args) => args.json,
        Command::Serve | Command::Completion { .. } => false,
    };
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            let (error, exit) = match failure {
                Failure::Local(error, exit) => (render::local_error(&error, exit), exit),
                Failure::Client(error) => (error.view(), error.exit()),
                Failure::Request {
                    error,
                    request_id,
                    exit,
                } => {
                    let mut view = error.view();
                    view.request_id = Some(request_id);
                    (view, exit)
                }
            };
            render::error(&error, json);
            exit.into()
        }
    }
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Serve => {
            let mut config = Config::load(cli.config.as_deref()).map_err(usage)?;
            if let Some(socket) = cli.socket {
                config.socket = socket;
            }
            let master = MasterConfig::load(&config.master_config).map_err(usage)?;
            start_log().map_err(usage)?;
            crate::daemon::serve(config, master)
                .map_err(|error| Failure::Local(error, Exit::Error))?;
            Ok(Exit::Succeeded)
        }
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "gw", &mut std::io::stdout());
            Ok(Exit::Succeeded)
        }
        command => {
            let socket = match cli.socket {
                Some(socket) => socket,
                None => Config::load(cli.config.as_deref()).map_err(usage)?.socket,
            };
            let client = Client::new(socket)?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(ask(&client, command))
        }
    }
}

async fn ask(client: &Client, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Publish(args) => publish(client, args).await,
        Command::Poll(args) => {
            let record: RecordView = client
                .post(&request_path(&args.request_id, "/poll")?, &())
                .await?;
            render::record(&record, args.json)?;
            Ok(Exit::of(&record))
        }
        Command::Show(args) => {
            let record: RecordView = client
                .get(&request_path(&args.request_id, "/history")?)
                .await?;
            render::record(&record, args.json)?;
            Ok(Exit::Succeeded)
        }
        Command::List(args) => {
            let mut path = format!("/v1/requests?limit={}", args.limit);
            for (key, value) in [("minion_id", &args.minion), ("state", &args.state)] {
                if let Some(value) = value {
                    path.push_str(&format!("&{key}={}", client::escape(value)));
                }
            }
            let records: Vec<RecordView> = client.get(&path).await?;
            render::list(&records, args.json)?;
            Ok(Exit::Succeeded)
        }
        Command::Serve | Command::Completion { .. } => unreachable!("they need no daemon"),
    }
}

async fn publish(client: &Client, args: Publish) -> Result<Exit, Failure> {
    // Drawn here, not by the daemon: whatever happens to the answer, the caller knows the id to ask for.
    let request_id = args
        .request_id
        .unwrap_or_else(|| RequestId::random().to_string());
    let body = PublishBody {
        request_id: Some(request_id.clone()),
        minion_id: args.minion,
        profile: args.profile,
        state_data: args.state_data.map(read_state_data).transpose()?,
    };
    let failed = |exit: Option<Exit>| {
        let request_id = request_id.clone();
        move |error: ClientError| match exit.or_else(|| error.leaves_doubt().then(|| error.exit()))
        {
            Some(exit) => Failure::Request {
                error,
                request_id,
                exit,
            },
            None => Failure::Client(error),
        }
    };
    let mut record: RecordView = client
        .post("/v1/requests", &body)
        .await
        .map_err(failed(None))?;
    if let Some(seconds) = args.wait {
        // Recorded and on its way, whatever becomes of the daemon now.
        record = follow::to_the_end(client, record, seconds)
            .await
            .map_err(failed(Some(Exit::Unresolved)))?;
    }
    render::record(&record, args.json)?;
    Ok(Exit::of(&record))
}

fn request_path(request_id: &str, rest: &str) -> Result<String, Failure> {
    let id = RequestId::parse(request_id).map_err(usage)?;
    Ok(format!("/v1/requests/{id}{rest}"))
}

fn read_state_data(path: PathBuf) -> Result<String, Failure> {
    let failed = |error| {
        usage(
            anyhow::Error::from(error)
                .context(format!("cannot read state data {}", path.display())),
        )
    };
    let reader: Box<dyn std::io::Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(&path).map_err(failed)?)
    };
    // One byte over the limit is enough to know; the daemon's own check has the words for it.
    let mut text = Vec::new();
    reader
        .take(state_data::MAX_BYTES as u64 + 1)
        .read_to_end(&mut text)
        .map_err(failed)?;
    if text.len() > state_data::MAX_BYTES {
        return Err(usage(anyhow::anyhow!(
            "state data is over the limit of {} bytes",
            state_data::MAX_BYTES
        )));
    }
    String::from_utf8(text).map_err(|_| usage(anyhow::anyhow!("state data is not UTF-8 text")))
}

/// JSON lines on standard error, one per event; `GW_LOG` sets the level.
fn start_log() -> anyhow::Result<()> {
    let level = match std::env::var("GW_LOG") {
        Ok(level) => level.parse().map_err(|_| {
            anyhow::anyhow!("GW_LOG must be error, warn, info or debug, got {level:?}")
        })?,
        Err(_) => tracing_subscriber::filter::LevelFilter::INFO,
    };
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .init();
    Ok(())
}

/// Prints a line on standard output; a reader that went away (`| head`) is no error.
fn print(line: &str) -> std::io::Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
