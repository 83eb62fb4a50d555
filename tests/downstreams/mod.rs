//! Every kind against servers that nobody here wrote.

#![expect(clippy::disallowed_methods, reason = "keys of tests that share a server are random")]

mod smtp;
