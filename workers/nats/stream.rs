//! What a stream says of itself.

use std::time::Duration;

use serde::Deserialize;

/// The parts of a stream's configuration that decide what an acknowledgement is worth.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stream {
    pub(super) subjects: Vec<String>,
    pub(super) retention: String,
    pub(super) storage: String,
    pub(super) discard: String,
    pub(super) num_replicas: u32,
    pub(super) max_msgs: i64,
    pub(super) max_bytes: i64,
    pub(super) max_msg_size: i64,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) max_age: Duration,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) duplicate_window: Duration,
    pub(super) no_ack: bool,
    pub(super) sealed: bool,
}

/// What the server says when it is asked for a stream.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    pub(super) error: Option<ApiError>,
    pub(super) config: Option<Stream>,
}

/// An error of the JetStream API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiError {
    pub(super) code: u16,
    pub(super) err_code: u64,
    pub(super) description: String,
}

fn nanoseconds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let nanoseconds = i64::deserialize(deserializer)?;
    Ok(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)))
}

impl Stream {
    /// Whether one of its subjects takes `subject`.
    pub(super) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|pattern| covers(pattern, subject))
    }
}

fn covers(pattern: &str, subject: &str) -> bool {
    let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
    loop {
        match (pattern.next(), subject.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(word), Some(said)) if word == said => {}
            (Some(_) | None, Some(_) | None) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn a_pattern_takes_what_the_server_says_it_takes() {
        for (pattern, subject, takes) in [
            ("orders.new", "orders.new", true),
            ("orders.*", "orders.new", true),
            ("orders.*", "orders.new.eu", false),
            ("orders.>", "orders.new.eu", true),
            ("orders.>", "orders", false),
            (">", "a.b", true),
            ("orders", "orders.new", false),
        ] {
            assert_eq!(covers(pattern, subject), takes, "{pattern} {subject}");
        }
    }
}
