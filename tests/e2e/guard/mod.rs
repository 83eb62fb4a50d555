//! The guard against the world: server processes with the guard around a shop, killed between any two statements, raced, cut off
//! and lied to, on both databases.
//!
//! [`server`] is the server; the test program starts itself as one. [`shop`] starts servers on a test's database and gathers
//! the evidence that [`evidence`] judges: what clients were told, and what the tables hold. What the guard says of itself is
//! no evidence.

mod broken;
mod can_fail;
mod chaos;
mod client;
mod evidence;
mod flood;
mod fuzz;
mod gate;
mod hangups;
mod held;
mod hold;
mod kills;
mod long;
mod restart;
mod rounds;
mod server;
mod shop;
mod wires;
