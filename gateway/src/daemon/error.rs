//! What the API says when it cannot do what it was asked: a status, a stable code, words, a hint.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::api::{ErrorBody, ErrorView};

/// One error answer.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            status,
            code,
            message: message.into(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Input that no type of ours takes.
    pub fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The gateway itself failed; what was asked for may or may not be recorded.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            .hint("ask again with the same request id: a request is never sent twice")
    }

    pub fn not_found(request_id: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "request_unknown",
            format!("no request {request_id}"),
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error = ErrorView {
            code: self.code.to_owned(),
            message: self.message,
            hint: self.hint,
            request_id: None,
        };
        (self.status, Json(ErrorBody { error })).into_response()
    }
}
