//! Where the key stands in a request, and how it is written there.

use super::{
    answers::{is_header_name, is_pointer},
    contract::Written,
    tree::Node,
    values::{Setting, quoted},
};

/// Where the key stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyIn {
    /// In this header.
    Header(String),
    /// In the body, at this pointer.
    Body(String),
    /// In the query, under this name.
    Query(String),
    /// In the path, where its template has `{key}`.
    Path,
}

/// Who says where the key of a kind's effects stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPlace {
    /// The contract: `key_in` and `key_format`.
    Written,
    /// The kind itself: it is always this.
    Own(&'static str),
}

impl KeyPlace {
    /// What a contract says about it.
    pub(super) const KEYS: [&str; 2] = ["key_in", "key_format"];

    /// What of it a contract says that cannot be said, and why.
    pub(super) fn refuses(self, written: &Written) -> Option<(&'static str, String)> {
        let Self::Own(own) = self else { return None };
        let problem = || format!("cannot be set for this kind: the key is its {own}");
        match written.says_where() {
            (Some(KeyIn::Header(name)), _) if name.eq_ignore_ascii_case(own) => None,
            (Some(_), _) => Some(("key_in", problem())),
            (None, true) => Some(("key_format", problem())),
            (None, false) => None,
        }
    }
}

impl Setting for KeyIn {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be \"header:Name\", \"body:/pointer\", \"query:name\" or \"path\"";
        let text = String::read(node)?;
        match text.split_once(':') {
            Some(("header", name)) if is_header_name(name) => Ok(Self::Header(name.to_owned())),
            Some(("body", pointer)) if is_pointer(pointer) => Ok(Self::Body(pointer.to_owned())),
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            None if text == "path" => Ok(Self::Path),
            _ => Err(FORM.to_owned()),
        }
    }

    fn show(&self) -> String {
        quoted(&match self {
            Self::Header(name) => format!("header:{name}"),
            Self::Body(pointer) => format!("body:{pointer}"),
            Self::Query(name) => format!("query:{name}"),
            Self::Path => "path".to_owned(),
        })
    }
}

/// How the key is written into a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyFormat {
    /// As it is.
    #[default]
    Raw,
    /// As a string of RFC 8941: in double quotes.
    SfString,
}
