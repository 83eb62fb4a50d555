//! The test program: every test that needs more than one function. `./tests/run` starts the servers it needs.

#[cfg(test)]
mod support;

#[cfg(test)]
mod store;

#[cfg(test)]
mod engine;

#[cfg(test)]
mod guard;

#[cfg(test)]
mod downstreams;

#[cfg(test)]
mod dashboard;

#[cfg(test)]
mod e2e;

#[cfg(test)]
mod tidy;
