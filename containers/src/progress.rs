//! Where the bed tells what it is doing, because some of it takes a minute.

use std::sync::Arc;

/// A sink for progress lines, silent by default.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Sink>>);

type Sink = dyn Fn(&str) + Send + Sync;

impl Progress {
    /// Every line goes to `sink`.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sink)))
    }

    /// Tells one line.
    pub fn say(&self, line: &str) {
        if let Some(sink) = &self.0 {
            sink(line);
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}
