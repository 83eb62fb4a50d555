//! Where the key stands in a request, and how it is written there.

use super::{
    answers::{is_header_name, is_pointer},
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
