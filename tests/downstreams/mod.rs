//! Kinds of downstreams against real servers and other people's libraries.

mod webhook;
