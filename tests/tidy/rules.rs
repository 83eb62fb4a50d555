//! The rules: from the files to complaints, each with the file, and the line where there is one.

use std::collections::{BTreeMap, BTreeSet};

use aftercommit::state::{State, TRANSITIONS};

use super::Tree;

const LINES_MAX: usize = 400;

/// The modules that are pure: no database, no runtime, nothing above them.
const VOCABULARY: [&str; 9] =
    ["clock", "contract", "decision", "effect", "key", "outcome", "schedule", "state", "verb"];

/// What one database has and the others cannot: PostgreSQL notifies, has poolers, and is scanned by transaction numbers; SQLite's one
/// writer has its own statements, since a single one cannot write several tables, and nobody outside can watch its plans.
const ALONE: [(&str, &str); 6] = [
    ("postgres", "scan.rs"),
    ("postgres", "session.rs"),
    ("postgres", "statement.rs"),
    ("postgres", "wake.rs"),
    ("sqlite", "plans.rs"),
    ("sqlite", "write.rs"),
];

/// Who may run a statement by himself on PostgreSQL: those who know how one runs behind a pooler, and those whose
/// connections never go through one.
const RUNNERS: [&str; 4] = ["migrate.rs", "session.rs", "statement.rs", "wake.rs"];

pub(super) fn file_sizes(tree: &Tree) -> Vec<String> {
    let counted = |path: &str| [".rs", ".py", ".sh"].iter().any(|ending| path.ends_with(ending));
    tree.iter()
        .filter(|(path, _)| counted(path))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| {
            format!("{path} has {lines} lines, and {LINES_MAX} are enough: split it by what it is about")
        })
        .collect()
}

/// Rust lines with their numbers, without what stands behind `//`.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| {
        // A `//` in a string (`"https://…"`) follows a colon; one that begins a comment does not.
        let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
        (index + 1, &line[..comment.map_or(line.len(), |(at, _)| at)])
    })
}

/// Whether `word` stands in `line` as a whole word; a word that ends in `::` needs only its beginning free.
fn names(line: &str, word: &str) -> bool {
    let part_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(part_of_a_name);
        let after = line[at + word.len()..].chars().next().is_some_and(part_of_a_name);
        !before && (!after || word.ends_with(':'))
    })
}

fn forbid(path: &str, text: &str, words: &[&str], why: &str) -> Vec<String> {
    code(text)
        .flat_map(|(number, line)| {
            words
                .iter()
                .filter(move |word| names(line, word))
                .map(move |word| format!("{path}:{number} names {word}: {why}"))
        })
        .collect()
}

/// The module of the library that a path belongs to: `src/decision/tests.rs` belongs to `decision`.
fn library_module(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    inside.split('/').next()?.split('.').next()
}

/// The folders of `workers/` that carry effects out.
pub(super) fn kinds(tree: &Tree) -> BTreeSet<&str> {
    tree.iter()
        .filter(|(_, text)| code(text).any(|(_, line)| line.contains("Downstream for ")))
        .filter_map(|(path, _)| path.strip_prefix("workers/")?.split_once('/'))
        .map(|(kind, _)| kind)
        .filter(|folder| !["cli", "demo", "dev"].contains(folder))
        .collect()
}

pub(super) fn arrows(tree: &Tree) -> Vec<String> {
    let kinds = kinds(tree);
    let mut complaints = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        if library_module(path).is_some_and(|module| VOCABULARY.contains(&module)) {
            let above = ["sqlx::", "tokio::", "crate::store", "crate::engine"];
            complaints.extend(forbid(path, text, &above, "the vocabulary is pure"));
        }
        if path.starts_with("src/") {
            let layer = path == "src/guard/layer.rs";
            let outside: &[&str] = if layer {
                &["reqwest", "lapin", "lettre"]
            } else {
                &["reqwest", "lapin", "lettre", "axum::"]
            };
            complaints.extend(forbid(path, text, outside, "the library knows no downstream and no HTTP"));
        }
        let elsewhere = "what differs between databases differs in their own folders";
        if path.starts_with("src/store/postgres/") {
            complaints.extend(forbid(
                path,
                text,
                &["sqlite", "SqlitePool", "SqliteConnection", "Sqlite"],
                elsewhere,
            ));
        }
        if path.starts_with("src/store/sqlite/") {
            complaints.extend(forbid(
                path,
                text,
                &["postgres", "PgPool", "PgConnection", "Postgres"],
                elsewhere,
            ));
        }
        let folder = path.strip_prefix("workers/").and_then(|inside| inside.split_once('/'));
        if folder.is_some_and(|(folder, _)| kinds.contains(folder)) {
            let why = "a kind translates and classifies; it never stores, retries or decides";
            let above = ["aftercommit::store", "aftercommit::engine", "aftercommit::decision", "sqlx::"];
            complaints.extend(forbid(path, text, &above, why));
        }
    }
    complaints
}

/// The folders right under `room`, each with the names of the files in it.
pub(super) fn folders<'a>(tree: &'a Tree, room: &str) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for path in tree.keys() {
        if let Some((folder, file)) = path.strip_prefix(room).and_then(|inside| inside.split_once('/')) {
            folders.entry(folder).or_default().insert(file);
        }
    }
    folders
}

fn differences(room: &str, folders: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let all: BTreeSet<&str> = folders.values().flatten().copied().collect();
    folders
        .iter()
        .flat_map(|(folder, files)| {
            all.difference(files)
                .map(move |file| format!("{room}{folder}/{file} is missing; another folder has it"))
        })
        .collect()
}

pub(super) fn store_files(tree: &Tree) -> Vec<String> {
    let mut folders = folders(tree, "src/store/");
    for (folder, files) in &mut folders {
        files.retain(|file| !ALONE.contains(&(*folder, *file)));
    }
    differences("src/store/", &folders)
}

pub(super) fn statements(tree: &Tree) -> Vec<String> {
    let words = ["sqlx::query", "sqlx::query_as", "sqlx::query_scalar", "sqlx::raw_sql"];
    let why = "behind a transaction pooler it would fail: use `sql` and `self.all`, `one`, `optional`, `scalar` or `execute` of \
               statement.rs, on the store or on a `Tx`";
    tree.iter()
        .filter_map(|(path, text)| Some((path, path.strip_prefix("src/store/postgres/")?, text)))
        .filter(|(_, file, _)| !RUNNERS.contains(file))
        .flat_map(|(path, _, text)| forbid(path, text, &words, why))
        .collect()
}

pub(super) fn migrations(tree: &Tree) -> Vec<String> {
    let folders = folders(tree, "migrations/");
    let mut complaints = differences("migrations/", &folders);
    for (folder, files) in &folders {
        for (index, file) in files.iter().enumerate() {
            let number = format!("{:04}_", index + 1);
            if !file.starts_with(&number) || !file.ends_with(".sql") {
                complaints.push(format!(
                    "migrations/{folder}/{file} should be {number}NAME.sql: numbers have no gaps"
                ));
            }
        }
    }
    complaints
}

/// The README's table of states: a row per state, `| state | what it means | what may follow |`.
fn drawn(readme: &str) -> BTreeMap<String, BTreeSet<String>> {
    let section = readme.split("\n## States").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let words =
        |cell: &str| -> BTreeSet<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(state, rest)| (state.to_owned(), words(rest.split('|').nth(2).unwrap_or_default())))
        .collect()
}

pub(super) fn states(tree: &Tree) -> Vec<String> {
    let readme = tree.get("README.md").map_or("", String::as_str);
    let table = drawn(readme);
    let follow = |from: State| -> BTreeSet<String> {
        TRANSITIONS.iter().filter(|(f, ..)| *f == from).map(|(_, to, _)| to.to_string()).collect()
    };
    let legal: BTreeMap<_, _> = State::ALL.iter().map(|state| (state.to_string(), follow(*state))).collect();
    let mut complaints = Vec::new();
    for state in legal.keys().chain(table.keys()).collect::<BTreeSet<_>>() {
        if legal.get(state) != table.get(state) {
            let (code, drawn) = (legal.get(state), table.get(state));
            complaints.push(format!(
                "README.md, States: {state} becomes {code:?} in code and {drawn:?} in the table"
            ));
        }
    }
    let diagram = readme
        .split("\n## States")
        .nth(1)
        .and_then(|section| section.split("```").nth(1))
        .unwrap_or_default();
    for state in State::ALL.iter().filter(|state| !names(diagram, state.as_str())) {
        complaints.push(format!("README.md, States: {state} is not in the diagram"));
    }
    for database in folders(tree, "migrations/").keys() {
        let room = format!("migrations/{database}/");
        let sql: String =
            tree.iter().filter(|(path, _)| path.starts_with(&room)).map(|(_, sql)| sql.as_str()).collect();
        for state in State::ALL.iter().filter(|state| !sql.contains(&format!("'{state}'"))) {
            complaints.push(format!("{room}: no statement can show the state {state}"));
        }
    }
    complaints
}

/// The files that may declare the module at `path`, and its name; `None` for the root of a crate.
fn declared_in(path: &str) -> Option<(Vec<String>, &str)> {
    let (folder, file) = path.rsplit_once('/')?;
    let name = file.strip_suffix(".rs")?;
    let (folder, name) = if name == "mod" { folder.rsplit_once('/')? } else { (folder, name) };
    let top = !folder.contains('/');
    if top && ["lib", "main"].contains(&name) {
        return None;
    }
    let parents = if top { vec!["lib.rs", "main.rs"] } else { vec!["mod.rs"] };
    let mut parents: Vec<_> = parents.into_iter().map(|parent| format!("{folder}/{parent}")).collect();
    parents.push(format!("{folder}.rs"));
    Some((parents, name))
}

pub(super) fn mod_lists(tree: &Tree) -> Vec<String> {
    let rooms = ["src/", "workers/", "dashboard/", "tests/"];
    tree.keys()
        .filter(|path| path.ends_with(".rs") && rooms.iter().any(|room| path.starts_with(room)))
        .filter_map(|path| Some((path, declared_in(path)?)))
        .filter(|(path, (parents, name))| {
            let file = path.rsplit('/').next().unwrap_or_default();
            !parents.iter().filter_map(|parent| tree.get(parent)).any(|text| {
                code(text)
                    .any(|(_, line)| names(line, &format!("mod {name}")) && line.trim_end().ends_with(';'))
                    || text.contains(&format!("/{file}\"]"))
            })
        })
        .map(|(path, (parents, name))| {
            format!("{path} is compiled by nobody: `mod {name};` is in none of {parents:?}")
        })
        .collect()
}

pub(super) fn code_map(tree: &Tree) -> Vec<String> {
    let map = tree.get("ARCHITECTURE.md").map_or("", String::as_str);
    let mut complaints = Vec::new();
    for root in ["src/lib.rs", "workers/lib.rs", "workers/main.rs", "dashboard/lib.rs"] {
        for (_, line) in code(tree.get(root).map_or("", String::as_str)) {
            let declared = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            let Some(module) =
                declared.strip_prefix("mod ").and_then(|rest| rest.trim_end().strip_suffix(';'))
            else {
                continue;
            };
            let known = [format!("{module}.rs"), format!("{module}/"), format!("`{module}`")];
            if module != "tests" && !known.iter().any(|name| map.contains(name.as_str())) {
                complaints.push(format!("ARCHITECTURE.md does not say what {module} ({root}) is for"));
            }
        }
    }
    complaints
}

/// Written in two parts, so that this file does not break its own rule.
const MACHINES: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/tm", "p/"),
    concat!("/Use", "rs/"),
];

pub(super) fn machine_paths(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree {
        for (index, line) in text.lines().enumerate() {
            let absolute = |needle: &str| {
                line.match_indices(needle).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.}~".contains(c))
                })
            };
            for needle in MACHINES.iter().filter(|needle| absolute(needle)) {
                complaints.push(format!("{path}:{} has the path {needle} of somebody's machine", index + 1));
            }
        }
    }
    complaints
}

const LEFTOVERS: [&str; 4] =
    [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("XX", "X:")];

pub(super) fn leftovers(tree: &Tree) -> Vec<String> {
    let ours = |path: &str| !path.ends_with(".json") && !path.ends_with(".lock");
    let mut complaints = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| ours(path)) {
        for (index, line) in text.lines().enumerate() {
            for word in LEFTOVERS.iter().filter(|word| line.contains(**word)) {
                complaints.push(format!("{path}:{} has {word}: do it, or write the issue down", index + 1));
            }
        }
    }
    complaints
}

pub(super) fn links(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = file.is_empty() || file.contains("://") || file.starts_with("mailto:");
            let full = match file.strip_prefix("../") {
                // Documents lie one folder deep.
                Some(above) => above.trim_end_matches('/').to_owned(),
                None => format!("{folder}{}", file.trim_end_matches('/')),
            };
            let found = tree.keys().any(|known| *known == full || known.starts_with(&format!("{full}/")));
            if !elsewhere && !found {
                complaints.push(format!("{path} links to {target}, which is not there"));
            }
        }
    }
    complaints
}
