//! From text to terms.

use std::{collections::BTreeSet, time::Duration};

use aftercommit::{clock::Timestamp, effect::EffectId, state::State, store::PAGE_MAX};

use super::{Reference, Search, Term};
use crate::causes::is_cause;

/// Longer ones are nobody's: an address bar would not hold them.
const LEN_MAX: usize = 4_000;
/// Deeper paths into the metadata are not looked for.
const PATH_MAX: usize = 16;

/// A term as it stands: what is before the colon, in parts, and what is behind it.
struct Token {
    /// As it was written.
    text: String,
    /// The parts of its name; empty where it has none.
    name: Vec<String>,
    value: String,
    quoted: bool,
}

pub(super) fn search(text: &str) -> Search {
    let mut search = Search::default();
    if text.len() > LEN_MAX {
        search.problems.push(format!("a search has at most {LEN_MAX} characters"));
        return search;
    }
    let mut seen = BTreeSet::new();
    for token in tokens(text, &mut search.problems) {
        match term(&token) {
            Ok(term) => {
                let once =
                    !matches!(term, Term::Older(_) | Term::Younger(_) | Term::Before(_) | Term::After(_));
                // Two places in the metadata are two things, unless one lies within the other.
                let name = if let Term::Metadata(reference) = &term {
                    format!("metadata.{}", reference.path[0])
                } else {
                    term.name()
                };
                if once && !seen.insert(name.clone()) {
                    search.problems.push(twice(&term, &name));
                }
                search.terms.push(term);
            }
            Err(problem) => search.problems.push(problem),
        }
    }
    let bare = search.terms.iter().any(|term| matches!(term, Term::Bare(_)));
    if bare && search.terms.len() > 1 {
        search.problems.push(
            "a word without a name looks one effect up and stands alone; beside others, say what it is: key:, \
             metadata.NAME: or error:"
                .to_owned(),
        );
    }
    search
}

fn twice(term: &Term, name: &str) -> String {
    match term {
        Term::State(_) => "state: stands twice; several states are written state:failed,in_doubt".to_owned(),
        Term::Bare(_) => {
            "one word at a time can be looked up; a text with spaces stands in \"quotes\"".to_owned()
        }
        Term::Downstream(_)
        | Term::Operation(_)
        | Term::Key(_)
        | Term::Metadata(_)
        | Term::Error(_)
        | Term::Older(_)
        | Term::Younger(_)
        | Term::Before(_)
        | Term::After(_)
        | Term::Ids(_)
        | Term::Cause(_) => format!("{name}: stands twice, and an effect has one of it"),
    }
}

fn term(token: &Token) -> Result<Term, String> {
    let value = token.value.clone();
    let Some((first, rest)) = token.name.split_first() else { return Ok(Term::Bare(value)) };
    if first != "metadata" && !rest.is_empty() {
        return Ok(Term::Bare(token.text.clone()));
    }
    let known = matches!(
        first.as_str(),
        "state"
            | "downstream"
            | "operation"
            | "key"
            | "metadata"
            | "error"
            | "age"
            | "created"
            | "id"
            | "cause"
    );
    if known && value.is_empty() && !(first == "metadata" && token.quoted) {
        return Err(format!("{first}: says nothing"));
    }
    match first.as_str() {
        "state" => states(&value),
        "downstream" => Ok(Term::Downstream(value)),
        "operation" => Ok(Term::Operation(value)),
        "key" => Ok(Term::Key(value)),
        "metadata" if rest.is_empty() => {
            Err("metadata needs the name of what is looked for: metadata.order:A-17".to_owned())
        }
        "metadata" if rest.len() > PATH_MAX => Err(format!("metadata is looked into {PATH_MAX} names deep")),
        "metadata" => Ok(Term::Metadata(Reference { path: rest.to_vec(), value, quoted: token.quoted })),
        "error" => Ok(Term::Error(value)),
        "age" => age(&value),
        "created" => created(&value),
        "id" => ids(&value),
        "cause" if is_cause(&value) => Ok(Term::Cause(value)),
        "cause" => {
            Err(format!("cause:{value} is no group of failures; the failures page links to each of them"))
        }
        // Keys have colons too: it is looked up as a whole.
        _ => Ok(Term::Bare(token.text.clone())),
    }
}

fn states(value: &str) -> Result<Term, String> {
    let mut states = Vec::new();
    for word in value.split(',').filter(|word| !word.is_empty()) {
        let state = word.replace([' ', '-'], "_").parse::<State>().map_err(|unknown| unknown.to_string())?;
        if !states.contains(&state) {
            states.push(state);
        }
    }
    if states.is_empty() {
        // No state would read as any state.
        return Err("state: says nothing".to_owned());
    }
    Ok(Term::State(states))
}

fn ids(value: &str) -> Result<Term, String> {
    let number = |id: &str| id.trim().parse::<i64>().ok().filter(|id| *id > 0).map(EffectId::new);
    match value.split(',').map(number).collect::<Option<Vec<_>>>() {
        Some(ids) if ids.len() <= usize::try_from(PAGE_MAX).unwrap_or(usize::MAX) => Ok(Term::Ids(ids)),
        Some(_) => Err(format!("id: takes at most {PAGE_MAX} numbers")),
        None => Err(format!("id:{value} is no number; several are written id:17,18")),
    }
}

fn age(value: &str) -> Result<Term, String> {
    let wrong =
        || format!("age:{value} is no age; an hour and more is age:>1h, the last ten minutes are age:<10m");
    let length = value.strip_prefix(['>', '<']).and_then(duration).ok_or_else(wrong)?;
    Ok(if value.starts_with('>') { Term::Older(length) } else { Term::Younger(length) })
}

fn created(value: &str) -> Result<Term, String> {
    let wrong = || {
        format!(
            "created:{value} is no time; times are written created:>2026-01-31 or created:<2026-01-31T12:00:00Z, in UTC \
             unless they say otherwise (+09:00)"
        )
    };
    let written = value
        .strip_prefix(['>', '<'])
        .filter(|at| at.len() >= 10 && at.starts_with(|c: char| c.is_ascii_digit()));
    let at = written.and_then(Timestamp::parse).ok_or_else(wrong)?;
    Ok(if value.starts_with('>') { Term::After(at) } else { Term::Before(at) })
}

/// `90s`, `5m` (or `5min`), `1h`, `2d`, `1w`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(digits);
    let size = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(size).map(Duration::from_secs)
}

/// Splits at white space outside of quotes. A quote that is not closed ends with the text, and is told.
fn tokens(text: &str, problems: &mut Vec<String>) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (token, after) = token(rest, problems);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

fn token<'t>(text: &'t str, problems: &mut Vec<String>) -> (Token, &'t str) {
    let mut name: Vec<String> = Vec::new();
    let (mut part, mut part_quoted, mut named) = (String::new(), false, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match c {
            c if c.is_whitespace() => break,
            '"' => {
                let (inside, after, closed) = in_quotes(&rest[1..]);
                if !closed {
                    problems.push("a quote is not closed".to_owned());
                }
                part.push_str(&inside);
                part_quoted = true;
                rest = after;
            }
            // A name begins with a word of ours: what a quote begins is a value.
            ':' if !named && (!part_quoted || !name.is_empty()) && !part.is_empty() => {
                name.push(std::mem::take(&mut part));
                (named, part_quoted) = (true, false);
                rest = &rest[1..];
            }
            '.' if !named && (name.first().map_or(part.as_str(), String::as_str) == "metadata") => {
                name.push(std::mem::take(&mut part));
                part_quoted = false;
                rest = &rest[1..];
            }
            c => {
                part.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    let written = text[..text.len() - rest.len()].to_owned();
    if !named {
        // Dots without a colon: no name at all.
        let value = if name.is_empty() { part } else { written.clone() };
        return (Token { text: written, name: Vec::new(), value, quoted: part_quoted }, rest);
    }
    (Token { text: written, name, value: part, quoted: part_quoted }, rest)
}

/// What stands up to the closing quote, what comes after it, and whether there was one. `\"` and `\\` stand for themselves.
fn in_quotes(text: &str) -> (String, &str, bool) {
    let mut inside = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (inside, &text[at + 1..], true),
            '\\' => match chars.next() {
                Some((_, escaped @ ('"' | '\\'))) => inside.push(escaped),
                Some((_, other)) => inside.extend(['\\', other]),
                None => inside.push('\\'),
            },
            c => inside.push(c),
        }
    }
    (inside, "", false)
}
