//! Kinds of downstreams against real servers, and what every downstream owes the engine.

mod conformance;
