//! Every kind against servers that nobody here wrote.

#![expect(clippy::disallowed_methods, reason = "a test harness waits for processes by the machine's clock")]

mod smtp;
