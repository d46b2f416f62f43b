//! The local API: HTTP and JSON over a Unix socket, for `gw` and for any other program of the same user.

use std::future::Future;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use gw_wire::id::{IdError, MinionId, Profile, RequestId};
use gw_wire::state_data::{self, StateData};
use serde::Deserialize;
use tokio::net::UnixListener;

use super::dispatch::takes_state_data;
use super::poll::status_unanswered;
use super::{ApiError, Gateway, blocking, journal_failed};
use crate::api::{HistoryView, PublishBody, RecordView};
use crate::journal::{Filter, Record, Request};
use crate::record;
use crate::words;

/// The largest request body, in bytes: state data as a JSON string, every byte of it escaped as `\u00xx`.
const MAX_BODY_BYTES: usize = state_data::MAX_BYTES * 6 + 4096;
/// The most records that one list gives.
const MAX_LIST: u32 = 10_000;
/// The longest that one call waits for a change, in seconds; callers ask again.
const MAX_WAIT_S: u64 = 60;
/// How long requests may go on after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// Binds the socket, 0600, taking away a dead one of ours.
///
/// It is bound inside a directory of mode 0700 and renamed out of it, so that there is no moment in which
/// others could connect, whatever the umask is. A crash in between leaves that directory to the next start.
pub(super) fn bind(path: &FilePath) -> anyhow::Result<UnixListener> {
    let directory = path
        .parent()
        .context("the socket's path has no directory")?;
    let failed = || format!("cannot make the socket {}", path.display());
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(failed)?;
    match std::fs::symlink_metadata(path) {
        Ok(meta) => {
            let ours = rustix::process::geteuid().as_raw();
            anyhow::ensure!(
                meta.file_type().is_socket() && meta.uid() == ours,
                "{} exists and is not a socket of the daemon's user (it belongs to uid {})",
                path.display(),
                meta.uid()
            );
            anyhow::ensure!(
                std::os::unix::net::UnixStream::connect(path).is_err(),
                "another daemon answers on {}",
                path.display()
            );
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(failed),
    }
    let private = directory.join(".gw-socket");
    match std::fs::remove_dir_all(&private) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(failed),
    }
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&private)
        .with_context(failed)?;
    let fresh = private.join("s");
    let listener = UnixListener::bind(&fresh).with_context(failed)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))
        .with_context(failed)?;
    std::fs::rename(&fresh, path).with_context(failed)?;
    std::fs::remove_dir(&private).with_context(failed)?;
    Ok(listener)
}

/// Serves the API until `stopped`.
pub(super) async fn run(
    gateway: Arc<Gateway>,
    listener: UnixListener,
    stopped: impl Future<Output = ()> + Send + 'static,
) {
    let app = Router::new()
        .route("/v1/health", get(health))
        .route("/v1/requests", post(publish).get(list))
        .route("/v1/requests/{id}", get(show))
        .route("/v1/requests/{id}/history", get(history))
        .route("/v1/requests/{id}/poll", post(poll))
        .method_not_allowed_fallback(|| async {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            ApiError::new(status, "bad_method", "this path does not take that method")
        })
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "no_such_path", "no such path") })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(gateway);
    let (stopping, begun) = tokio::sync::oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async {
        stopped.await;
        drop(stopping);
    });
    let too_long = async {
        // The other end never sends: it is dropped when the stop begins.
        drop(begun.await);
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = serving.into_future() => {
            if let Err(error) = served {
                tracing::error!(event = "api_failed", reason = %error);
            }
        }
        () = too_long => {}
    }
}

async fn health() -> Json<serde_json::Value> {
    Json(serde_json::json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")}))
}

async fn publish(
    State(gateway): State<Arc<Gateway>>,
    body: Result<Json<PublishBody>, JsonRejection>,
) -> Result<Json<RecordView>, ApiError> {
    let Json(body) = body.map_err(|rejected| ApiError {
        status: rejected.status(),
        ..ApiError::bad("bad_body", rejected.body_text())
    })?;
    let request = parse(body, &gateway)?;
    gateway
        .publish(request)
        .await
        .map(|record| Json(gateway.view(&record)))
}

/// Text into types: the one place where a request is parsed.
fn parse(body: PublishBody, gateway: &Gateway) -> Result<Request, ApiError> {
    let minion = |error: IdError| ApiError::bad("bad_minion_id", error.to_string());
    let minion_id = MinionId::parse(&body.minion_id).map_err(minion)?;
    gateway
        .config
        .minion_id_pattern
        .check(&minion_id)
        .map_err(minion)?;
    let profile = Profile::parse(&body.profile)
        .map_err(|error| ApiError::bad("unknown_profile", error.to_string()))?;
    let state_data = match (body.state_data, takes_state_data(profile)) {
        (Some(data), true) => Some(
            StateData::canonicalize(data.as_bytes())
                .map_err(|error| ApiError::bad("bad_state_data", words(&error)))?,
        ),
        (None, false) => None,
        (None, true) => {
            return Err(
                ApiError::bad("bad_state_data", "profile custom needs state data")
                    .hint("give it with --state-data FILE"),
            );
        }
        (Some(_), false) => {
            let message = format!("profile {profile} takes no state data");
            return Err(ApiError::bad("bad_state_data", message));
        }
    };
    Ok(Request {
        request_id: match body.request_id {
            Some(text) => request_id(&text)?,
            None => RequestId::random(),
        },
        minion_id,
        profile,
        state_data,
    })
}

fn request_id(text: &str) -> Result<RequestId, ApiError> {
    RequestId::parse(text).map_err(|error| ApiError::bad("bad_request_id", error.to_string()))
}

/// `GET /v1/requests/{id}`: `after` and `wait_s` wait for a revision above `after`, or for news of progress.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    after: Option<i64>,
    wait_s: Option<u64>,
    /// The progress that the caller has seen.
    done: Option<u32>,
}

async fn show(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    query: Result<Query<Wait>, QueryRejection>,
) -> Result<Json<RecordView>, ApiError> {
    let id = request_id(&id)?;
    let Query(wait) = query.map_err(bad_query)?;
    let deadline =
        tokio::time::Instant::now() + Duration::from_secs(wait.wait_s.unwrap_or(0).min(MAX_WAIT_S));
    let mut changes = gateway.journal.changes();
    loop {
        // Marked as seen before the read, so that a change in between wakes us.
        changes.mark_unchanged();
        let view = gateway.view(&gateway.record(id).await?);
        let news = wait.after.is_none_or(|after| view.revision > after)
            || view
                .progress
                .is_some_and(|progress| wait.done.is_none_or(|done| progress.done > done));
        if news || tokio::time::Instant::now() >= deadline {
            return Ok(Json(view));
        }
        // A time-out and a closed channel both mean: look once more and answer.
        drop(tokio::time::timeout_at(deadline, changes.changed()).await);
    }
}

async fn history(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
) -> Result<Json<RecordView>, ApiError> {
    let id = request_id(&id)?;
    let mut view = gateway.view(&gateway.record(id).await?);
    let rows = blocking(&gateway, move |gateway| gateway.journal.history(id))
        .await
        .map_err(journal_failed)?;
    view.history = rows.into_iter().map(HistoryView::from).collect();
    Ok(Json(view))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    minion_id: Option<String>,
    state: Option<String>,
    limit: Option<u32>,
}

async fn list(
    State(gateway): State<Arc<Gateway>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Vec<RecordView>>, ApiError> {
    let Query(query) = query.map_err(bad_query)?;
    let minion_id = query
        .minion_id
        .map(|id| MinionId::parse(&id))
        .transpose()
        .map_err(|error| ApiError::bad("bad_minion_id", error.to_string()))?;
    if let Some(state) = query
        .state
        .as_ref()
        .filter(|state| !record::State::NAMES.contains(&state.as_str()))
    {
        let message = format!(
            "no state {state:?}: the states are {}",
            record::State::NAMES.join(", ")
        );
        return Err(ApiError::bad("bad_state", message));
    }
    let limit = query.limit.unwrap_or(100);
    if !(1..=MAX_LIST).contains(&limit) {
        return Err(ApiError::bad(
            "bad_limit",
            format!("limit must be 1 to {MAX_LIST}, got {limit}"),
        ));
    }
    let filter = Filter {
        minion_id,
        state: query.state,
        limit,
    };
    let records = blocking(&gateway, move |gateway| gateway.journal.list(&filter))
        .await
        .map_err(journal_failed)?;
    Ok(Json(
        records.iter().map(|record| gateway.view(record)).collect(),
    ))
}

/// Asks the minion now, unless nothing is open; the answer is in the record that this gives.
async fn poll(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
) -> Result<Json<RecordView>, ApiError> {
    let id = request_id(&id)?;
    let record = gateway.record(id).await?;
    if !record.state.awaits_evidence() {
        return Ok(Json(gateway.view(&record)));
    }
    match gateway.ask_status(&record).await {
        Ok(()) => {}
        // Silence changes nothing; the record itself says where things stand.
        Err(error) => status_unanswered(&record, &error),
    }
    Ok(Json(gateway.view(&gateway.record(id).await?)))
}

fn bad_query(rejected: QueryRejection) -> ApiError {
    ApiError::bad("bad_query", rejected.body_text())
}

impl Gateway {
    async fn record(self: &Arc<Self>, id: RequestId) -> Result<Record, ApiError> {
        blocking(self, move |gateway| gateway.journal.find(id))
            .await
            .map_err(journal_failed)?
            .ok_or_else(|| ApiError::not_found(id.as_str()))
    }

    fn view(&self, record: &Record) -> RecordView {
        let progress = record
            .claim
            .as_ref()
            .and_then(|claim| self.progress.get(claim.jid));
        RecordView::new(record, progress)
    }
}
