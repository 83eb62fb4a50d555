//! The columns of the list of effects: what a person chose, in the address or remembered by the browser. The address wins. What is no
//! column is passed over: a list with a column less is the same list.

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};

use super::super::parts::in_query;
use crate::security::see_other;

/// The name of the cookie.
const COOKIE: &str = "aftercommit-columns";
/// A year.
const KEPT_S: u32 = 31_536_000;

/// Each column, as it is named in the address, and its heading, in the order in which they stand. The effect itself is always shown.
const ALL: [(&str, &str); 8] = [
    ("state", "state"),
    ("key", "key and references"),
    ("attempts", "tries"),
    ("when", "when"),
    ("written", "written"),
    ("worker", "worker"),
    ("answer", "last answer"),
    ("error", "last error"),
];
/// Those that are shown where nobody chose.
const USUAL: [&str; 5] = ["state", "key", "attempts", "when", "error"];

/// Which columns are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns(Vec<&'static str>);

impl Default for Columns {
    fn default() -> Self {
        Self(USUAL.to_vec())
    }
}

/// A box to be ticked.
pub(super) struct Choice {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) is_shown: bool,
}

impl Columns {
    /// Those of these words that are columns; `None` when none is.
    pub(super) fn of<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let words: Vec<&str> = words.map(str::trim).collect();
        let named: Vec<&'static str> =
            ALL.into_iter().map(|(name, _)| name).filter(|name| words.contains(name)).collect();
        Some(Self(named)).filter(|columns| !columns.0.is_empty())
    }

    /// What the browser remembers.
    pub(super) fn remembered(headers: &HeaderMap) -> Option<Self> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == COOKIE)?;
        Self::of(value.split('.'))
    }

    /// Whether this one is shown.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    /// Whether they only have room side by side where what they tell may be broken.
    pub(super) fn are_many(&self) -> bool {
        self.0.len() > 6
    }

    /// What a link carries on where the address chose.
    pub(super) fn link(&self) -> String {
        format!("&columns={}", self.0.join(","))
    }

    /// As the address has it.
    pub(super) fn words(&self) -> String {
        self.0.join(",")
    }

    pub(super) fn choices(&self) -> Vec<Choice> {
        ALL.map(|(name, title)| Choice { name, title, is_shown: self.has(name) }).into_iter().collect()
    }
}

/// Leads back to the list of `said`, which the browser shows in these columns from now on; none: in the usual ones. The cookie says
/// nothing but names of ours, and counts below the dashboard's own path, which is where the list is.
pub(super) fn remember(columns: Option<&Columns>, said: &str) -> Response {
    let mut answer = see_other(&format!("effects?q={}", in_query(said)));
    let (names, kept) = match columns.filter(|columns| **columns != Columns::default()) {
        Some(columns) => (columns.0.join("."), KEPT_S),
        None => (String::new(), 0),
    };
    let cookie = format!("{COOKIE}={names}; Max-Age={kept}; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(answer: &Response) -> &str {
        answer.headers()[header::SET_COOKIE].to_str().unwrap()
    }

    #[test]
    fn what_was_chosen_comes_back_in_the_order_of_the_page() {
        let chosen = Columns::of(["error", "worker", "bogus", " state "].into_iter()).unwrap();
        assert_eq!(chosen.words(), "state,worker,error");
        let answer = remember(Some(&chosen), "state:failed age:>1h");
        assert_eq!(answer.headers()[header::LOCATION], "effects?q=state:failed+age:%3E1h");
        assert!(
            cookie(&answer).starts_with("aftercommit-columns=state.worker.error; Max-Age=31536000; HttpOnly")
        );
        let pair = cookie(&answer).split(';').next().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("other=1; {pair}").parse().unwrap());
        assert_eq!(Columns::remembered(&headers), Some(chosen));
    }

    #[test]
    fn the_usual_columns_are_forgotten_and_a_strange_cookie_is_none() {
        for usual in [None, Some(&Columns::default())] {
            assert!(cookie(&remember(usual, "")).starts_with("aftercommit-columns=; Max-Age=0;"));
        }
        let mut headers = HeaderMap::new();
        for strange in ["aftercommit-columns=", "aftercommit-columns=<script>.x", "aftercommit-columns"] {
            headers.insert(header::COOKIE, strange.parse().unwrap());
            assert_eq!(Columns::remembered(&headers), None, "{strange}");
        }
        assert!(USUAL.iter().all(|name| ALL.iter().any(|(known, _)| known == name)));
    }
}
