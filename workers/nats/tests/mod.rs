//! The kind against its contract: what is rendered, what answers show, and servers that behave as badly as they can.

mod answers;
mod configured;
mod hostile;
mod late;
mod refused;
mod rendering;
mod server;

use std::time::Duration;

/// Longer than an exchange takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A downstream's table, for the server at `place`.
fn table(place: &str) -> String {
    format!(
        "kind = \"nats\"\nurl = \"nats://{place}\"\nstream = \"ORDERS\"\nsubject = \"orders.new\"\n\
         contract = {{ dedupe = \"key\", window = \"2m\", margin = \"10s\" }}\n"
    )
}
