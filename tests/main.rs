//! The test program: every test that needs more than one function. `./tests/run` starts the servers it needs.

#[cfg(test)]
#[expect(dead_code, unused_imports, reason = "tests that are still to come use the rest")]
mod support;

#[cfg(test)]
mod store;

#[cfg(test)]
mod engine;

#[cfg(test)]
mod e2e;

#[cfg(test)]
mod tidy;
