//! Every kind against servers that nobody here wrote.

mod smtp;
