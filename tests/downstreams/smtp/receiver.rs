//! `receive.py`: a server that nobody here wrote, and a reader of mail that nobody here wrote.

use std::{
    io::{BufRead as _, BufReader, Lines},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::e2e::environment;

/// The server; it ends with this value.
pub(super) struct Receiver {
    pub(super) port: u64,
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Receiver {
    /// Starts it; with files of a certificate and its key it wants TLS and a password, by "starttls" or "smtps".
    pub(super) fn start(certificate: &[PathBuf], how: &[&str]) -> Self {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/downstreams/smtp/receive.py");
        let mut child = Command::new(environment::python())
            .arg(script)
            .args(certificate)
            .args(how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut receiver = Self { port: 0, child, said };
        receiver.port = receiver.next()["port"].as_u64().expect("it says its port first");
        receiver
    }

    /// The next mail that it read.
    pub(super) fn next(&mut self) -> Value {
        let line = self.said.next().expect("receive.py ended: look at its errors above").expect("text");
        serde_json::from_str(&line).expect("a line of JSON")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What stands in base64 at `value`.
pub(super) fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap_or_else(|| panic!("no bytes: {value}"))).expect("base64")
}
