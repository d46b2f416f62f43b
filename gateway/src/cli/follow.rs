//! `--wait`: follows one record to its end; a progress bar on a terminal, plain lines otherwise.
//!
//! Both go to standard error, so that standard output holds the record alone.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::client::{Client, ClientError};
use crate::api::{Progress, RecordView};

/// How long one call waits for news, in seconds; then it is asked again.
const WAIT_S: u64 = 30;

/// How long a daemon may be away while it is restarted.
const RESTART_PATIENCE: Duration = Duration::from_secs(30);

/// Follows until the record has ended, or for `seconds` if that is not 0.
pub async fn to_the_end(
    client: &Client,
    mut record: RecordView,
    seconds: u64,
) -> Result<RecordView, ClientError> {
    let deadline = (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds));
    let mut display = Display::new(&record);
    loop {
        display.show(&record);
        if record.is_ended() {
            break;
        }
        let mut wait_s = WAIT_S;
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait_s = wait_s.min(left.as_secs() + 1);
        }
        let mut path = format!(
            "/v1/requests/{}?after={}&wait_s={wait_s}",
            record.request_id, record.revision
        );
        if let Some(progress) = record.progress {
            path.push_str(&format!("&done={}", progress.done));
        }
        record = get_patiently(client, &path).await?;
    }
    display.finish();
    Ok(record)
}

/// Asks again for a while when the daemon is away: a restart is no end of the job.
async fn get_patiently(client: &Client, path: &str) -> Result<RecordView, ClientError> {
    let deadline = Instant::now() + RESTART_PATIENCE;
    loop {
        match client.get(path).await {
            Err(ClientError::NoDaemon { .. } | ClientError::Lost(_))
                if Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            answer => return answer,
        }
    }
}

enum Display {
    Bar(ProgressBar),
    Lines { last: String },
}

impl Display {
    fn new(record: &RecordView) -> Self {
        if !std::io::stderr().is_terminal() {
            return Display::Lines {
                last: String::new(),
            };
        }
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg} {elapsed}")
            .expect("the template is well-formed");
        bar.set_style(style);
        bar.set_prefix(record.minion_id.clone());
        bar.enable_steady_tick(Duration::from_millis(250));
        Display::Bar(bar)
    }

    fn show(&mut self, record: &RecordView) {
        let progress = match (record.passed, record.total) {
            (Some(done), Some(total)) => Some(Progress { done, total }),
            _ => record.progress,
        };
        match self {
            Display::Bar(bar) => {
                if let Some(progress) = progress {
                    bar.set_length(progress.total.into());
                    bar.set_position(progress.done.into());
                }
                bar.set_message(record.state.clone());
            }
            Display::Lines { last } => {
                let line = match (progress, record.is_ended()) {
                    (Some(progress), false) => {
                        format!("running {}/{}", progress.done, progress.total)
                    }
                    (Some(progress), true) => {
                        format!("{} {}/{}", record.state, progress.done, progress.total)
                    }
                    (None, _) => record.state.clone(),
                };
                if line != *last {
                    eprintln!("{} {line}", record.minion_id);
                    *last = line;
                }
            }
        }
    }

    fn finish(self) {
        if let Display::Bar(bar) = self {
            bar.abandon();
        }
    }
}
