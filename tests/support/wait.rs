//! Waiting with an end and a message.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// Polls `condition` until it gives a value, and returns that; panics at `deadline` with what was waited for and where to
/// look.
pub(crate) async fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < end, "within {deadline:?} this did not happen: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Awaits `future`; panics at `deadline` with what was waited for.
pub(crate) async fn within<T>(deadline: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match timeout(deadline, future).await {
        Ok(value) => value,
        Err(_) => panic!("within {deadline:?} this did not end: {what}"),
    }
}
