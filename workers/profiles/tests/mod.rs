//! The shipped profiles against what their vendors document: every value has a dated source, every rule an answer.

mod answers;
mod cases;
mod files;
