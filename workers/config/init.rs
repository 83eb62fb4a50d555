//! `config init`: the one documented place where all defaults stand.

/// A complete, commented `aftercommit.toml`. It loads as it is; a test holds its defaults to the code's.
pub fn init() -> String {
    include_str!("aftercommit.toml").to_owned()
}
