//! The kind against its contract: what is rendered, what replies show, and a server that says what a test wants.

mod configured;
mod hostile;
mod rendering;
mod replies;
mod server;

use std::time::Duration;

/// Longer than an exchange takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A downstream's table, for the server at `place`.
fn table(place: &str) -> String {
    format!(
        "kind = \"redis\"\nurl = \"redis://{place}\"\nstream = \"orders\"\n\
         contract = {{ dedupe = \"key\", window = \"24h\" }}\n"
    )
}
