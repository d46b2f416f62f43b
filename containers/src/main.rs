//! The command `bed`: a real Salt 3006.27 to look at, and the demonstration.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bed::{Bed, Builder, Kind, Progress, Record, Transport, crash, demo, minion_id, salt};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::json;

/// Runs a real Salt 3006.27, a master and some minions, with gw beside the master.
///
/// The first run makes a virtual environment (or an image) and takes a minute or two; later ones take
/// about fifteen seconds.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  bed demo                         five scenarios on local processes, then everything is gone
  bed demo --backend docker        the same with containers
  bed demo --json --transport request
  bed up --minions 2               a bed that keeps running
  bed shell                        a shell in which `gw` and `salt` talk to it
  bed down"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a bed and leave it running.
    Up(Hosts),
    /// End the bed that `bed up` left running and remove its files.
    Down,
    /// Show the running bed's processes and its gateway. Exit code 1 if there is no bed or it is not well.
    Status {
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Open a shell in which `gw` and `salt` talk to the running bed.
    Shell,
    /// Cut a minion's executor and worker at every place where they change something, and check what must hold.
    #[command(after_help = "\
Examples:
  bed crash                                    everything: minutes to tens of minutes
  bed crash --quick                            at most 8 points of each scenario and kind
  bed crash --scenario first-run --kind power
  bed crash --executor ./gw-exec --json

Prints how many points of each kind were tried, every violation, and last `N points, M violations`.
Exit code 0 only if there was none. Needs x86-64 Linux and the right to trace processes of one's own.")]
    Crash(Crash),
    /// Play the scenarios of the README on a bed of their own. Exit code 0 only if each ended as documented.
    Demo {
        #[command(flatten)]
        hosts: Hosts,
    },
}

#[derive(Debug, Args)]
struct Hosts {
    /// Where the hosts live.
    #[arg(long, value_enum, default_value_t = Backend::Local)]
    backend: Backend,
    /// Containers of minions with systemd as their process 1, and salt-minion a service.
    #[arg(long)]
    systemd: bool,
    /// How many minions [default: 1; the demo has 3].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=50))]
    minions: Option<u8>,
    /// How the gateway publishes.
    #[arg(long, value_enum, default_value_t = Publish::Ipc)]
    transport: Publish,
    /// Authorities (PEM) to trust while an image is built, for networks that re-sign TLS
    /// [env: GW_BED_CA_BUNDLE, else SSL_CERT_FILE, CURL_CA_BUNDLE, PIP_CERT].
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// One JSON object a line on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Crash {
    /// A sample: at most 8 points of each scenario and kind, and of kind full only the first run.
    #[arg(long)]
    quick: bool,
    /// Only these scenarios [default: all].
    #[arg(long, value_parser = scenario)]
    scenario: Vec<crash::Scenario>,
    /// Only these kinds [default: all].
    #[arg(long, value_parser = kind)]
    kind: Vec<crash::Kind>,
    /// The gw-exec to try [default: this workspace's own].
    #[arg(long, value_name = "FILE")]
    executor: Option<PathBuf>,
    /// Chooses the sample, and which states a power cut leaves where there are too many.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object at the end.
    #[arg(long)]
    json: bool,
}

fn scenario(name: &str) -> Result<crash::Scenario, String> {
    let all = crash::Scenario::ALL;
    all.into_iter()
        .find(|scenario| scenario.name() == name)
        .ok_or_else(|| format!("one of {}", all.map(crash::Scenario::name).join(", ")))
}

fn kind(name: &str) -> Result<crash::Kind, String> {
    let all = crash::Kind::ALL;
    all.into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| format!("one of {}", all.map(crash::Kind::name).join(", ")))
}

/// How many points `--quick` tries of each scenario and kind.
const QUICK: usize = 8;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Backend {
    /// Processes of this machine on loopback ports; needs Python 3.8 to 3.11, not root.
    Local,
    /// Containers on a network of their own; needs a Docker Engine.
    Docker,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Publish {
    /// Into the master's publish_pull.ipc.
    Ipc,
    /// The publish command on the master's request port.
    Request,
}

impl Hosts {
    fn builder(&self) -> Builder {
        let kind = match self.backend {
            Backend::Local => Kind::Local,
            Backend::Docker => Kind::Docker,
        };
        let transport = match self.transport {
            Publish::Ipc => Transport::Ipc,
            Publish::Request => Transport::Request,
        };
        Bed::builder()
            .backend(kind)
            .systemd(self.systemd)
            .minions(self.minions.unwrap_or(1).into())
            .transport(transport)
            .ca_bundle(self.ca_bundle.clone())
            .progress(Progress::new(|line| eprintln!("{line}")))
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Up(hosts) => up(&hosts),
        Command::Down => down(),
        Command::Status { json } => status(json),
        Command::Shell => shell(),
        Command::Demo { hosts } => play(&hosts),
        Command::Crash(what) => crash_matrix(&what),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn up(hosts: &Hosts) -> Result<bool> {
    let path = record_path()?;
    if path.exists() {
        bail!(
            "a bed is recorded in {} already\nhint: bed status, bed down",
            path.display()
        );
    }
    let record = hosts.builder().up()?.detach()?;
    if let Err(error) = save(&record) {
        Bed::attach(record).down()?;
        return Err(error);
    }
    if hosts.json {
        say(&serde_json::to_string(&record)?)?;
    } else {
        say("the bed is up; next: bed shell, bed status, bed down")?;
    }
    Ok(true)
}

fn down() -> Result<bool> {
    let path = record_path()?;
    Bed::attach(load()?).down()?;
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    eprintln!("the bed is gone");
    Ok(true)
}

fn status(as_json: bool) -> Result<bool> {
    let bed = Bed::attach(load()?);
    let master = bed.all_master_processes()?;
    let minions = (0..bed.minions())
        .map(|n| Ok((minion_id(n), bed.minion_processes(n)?)))
        .collect::<Result<Vec<_>>>()?;
    let gateway = bed.gateway_answers()?;
    if as_json {
        let minions: Vec<_> = minions
            .iter()
            .map(|(id, all)| json!({"id": id, "processes": all.len()}))
            .collect();
        let socket = bed.gateway_socket();
        say(&json!({"kind": bed.kind(), "transport": bed.transport(), "master_processes": master.len(),
            "minions": minions, "gateway": {"socket": socket, "answers": gateway}}).to_string())?;
    } else {
        say(&format!("salt-master   {} processes", master.len()))?;
        for (id, all) in &minions {
            say(&format!("salt-minion   {} processes  {id}", all.len()))?;
        }
        let word = if gateway {
            "answers"
        } else {
            "does not answer"
        };
        say(&format!(
            "gw            {word} at {}",
            bed.gateway_socket().display()
        ))?;
    }
    Ok(gateway && !master.is_empty() && minions.iter().all(|(_, all)| !all.is_empty()))
}

fn shell() -> Result<bool> {
    let bed = Bed::attach(load()?);
    eprintln!(
        "Try:  gw publish {} --profile configure --wait",
        minion_id(0)
    );
    eprintln!("      gw list        salt '*' test.ping        exit");
    bed.shell()
}

fn play(hosts: &Hosts) -> Result<bool> {
    let wanted = hosts
        .minions
        .map_or(demo::MINIONS, usize::from)
        .max(demo::MINIONS);
    let bed = demo::prepared(hosts.builder()).minions(wanted).up()?;
    let mut well = true;
    let mut written = Ok(());
    let talk = Progress::new(|line| eprintln!("{line}"));
    demo::run(&bed, &talk, |report| {
        well &= report.complaints.is_empty();
        for promise in &report.complaints {
            eprintln!("{}: not as documented: {promise}", report.scenario);
        }
        let line = if hosts.json {
            serde_json::to_string(report).map_err(Into::into)
        } else {
            Ok(human(report))
        };
        if written.is_ok() {
            written = line.and_then(|line| say(&line));
        }
    })?;
    written?;
    if !well {
        eprintln!("the gateway's log:\n{}", bed.gateway_log()?);
    }
    Ok(well)
}

fn crash_matrix(what: &Crash) -> Result<bool> {
    let all_if_none = |chosen: &[crash::Scenario]| match chosen {
        [] => crash::Scenario::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    let plan = crash::Plan {
        scenarios: all_if_none(&what.scenario),
        kinds: match what.kind.as_slice() {
            [] => crash::Kind::ALL.to_vec(),
            kinds => kinds.to_vec(),
        },
        at_most: what.quick.then_some(QUICK),
        seed: what.seed,
        executor: what.executor.clone(),
    };
    let report = crash::run(&plan, &Progress::new(|line| eprintln!("{line}")))?;
    if what.json {
        let counts: Vec<_> = report
            .counts
            .iter()
            .map(|((scenario, kind), count)| {
                json!({"scenario": scenario, "kind": kind, "places": count.places, "points": count.points, "missed": count.missed})
            })
            .collect();
        say(
            &json!({"counts": counts, "points": report.points(), "violations": report.violations})
                .to_string(),
        )?;
    } else {
        say(&report.table(&plan))?;
        for violation in &report.violations {
            say(&format!("VIOLATION {violation}"))?;
        }
        say(&format!(
            "{} points, {} violations",
            report.points(),
            report.violations.len()
        ))?;
    }
    Ok(report.violations.is_empty())
}

fn human(report: &demo::Report) -> String {
    let mark = if report.complaints.is_empty() {
        "ok"
    } else {
        "NOT AS DOCUMENTED"
    };
    let count = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    format!(
        "{:<22} published {}, executed {}, state {}, {}/{} states   {mark}\n",
        report.scenario,
        report.published,
        report.executed,
        report.state,
        count(report.passed),
        count(report.total),
    )
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")
}

fn record_path() -> Result<PathBuf> {
    Ok(salt::cache_dir()?.join("bed.json"))
}

fn save(record: &Record) -> Result<()> {
    let path = record_path()?;
    let text = serde_json::to_string_pretty(record).context("cannot write JSON")?;
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn load() -> Result<Record> {
    let path = record_path()?;
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("no bed is running\nhint: bed up")
        }
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
}
