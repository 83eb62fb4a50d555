//! The test program.

mod e2e;
