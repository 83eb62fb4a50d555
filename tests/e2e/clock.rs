//! The machine's clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's clock in microseconds since 1970: the proxies, the database and the workers share it here.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(since.as_micros()).expect("before the year 294276")
}
