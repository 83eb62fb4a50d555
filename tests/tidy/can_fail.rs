//! Every rule, held against the smallest house that breaks it, and against one that does not.

use aftercommit::state::{State, TRANSITIONS};

use super::{Tree, rules};

fn house(files: &[(&str, &str)]) -> Tree {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

/// The rule has exactly one complaint about `broken`, it says `what`, and it has none about `whole`.
fn fails(rule: fn(&Tree) -> Vec<String>, broken: &[(&str, &str)], what: &str, whole: &[(&str, &str)]) {
    let complaints = rule(&house(broken));
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains(what), "{complaints:?}");
    assert_eq!(rule(&house(whole)), Vec::<String>::new());
}

#[test]
fn a_file_of_401_lines_is_too_long() {
    let (fits, long) = ("x\n".repeat(400), "x\n".repeat(401));
    fails(rules::file_sizes, &[("src/a.rs", &long)], "401 lines", &[("src/a.rs", &fits), ("a.json", &long)]);
}

#[test]
fn the_vocabulary_may_not_name_a_database_or_a_runtime() {
    let comment = ("src/decision.rs", "// unlike sqlx::Error\nuse crate::state::State; // tokio::spawn");
    for (file, line) in [
        ("src/decision.rs", "use sqlx::Error;"),
        ("src/decision/tests.rs", "    tokio::spawn(x);"),
        ("src/state.rs", "use crate::store::Claim;"),
        ("src/verb.rs", "use crate::engine::Config;"),
    ] {
        fails(rules::arrows, &[(file, line)], &format!("{file}:1"), &[comment, ("src/enqueue.rs", line)]);
    }
}

#[test]
fn the_library_may_not_name_a_downstream_or_http() {
    let layer = ("src/guard/layer.rs", "use axum::body::Body;");
    fails(rules::arrows, &[("src/engine/mod.rs", "use reqwest::Client;")], "names reqwest", &[layer]);
    fails(rules::arrows, &[("src/guard/mod.rs", "use axum::body::Body;")], "names axum", &[layer]);
}

#[test]
fn one_database_may_not_name_another() {
    let own = [("src/store/postgres/mod.rs", "use sqlx::PgPool;"), ("src/store/mod.rs", "pub mod sqlite;")];
    fails(rules::arrows, &[("src/store/sqlite/claim.rs", "use super::super::postgres;")], "postgres", &own);
    fails(rules::arrows, &[("src/store/postgres/claim.rs", "let pool: SqlitePool;")], "SqlitePool", &own);
}

#[test]
fn a_statement_may_not_run_by_itself_on_postgres() {
    let whole = [
        ("src/store/postgres/claim.rs", "self.all(sql(CLAIM))"),
        ("src/store/postgres/statement.rs", "sqlx::query(text)"),
        ("src/store/sqlite/claim.rs", "sqlx::query(CLAIM)"),
    ];
    for line in ["sqlx::query(CLAIM)", "sqlx::query_scalar(CLAIM)", "sqlx::raw_sql(CLAIM)"] {
        let broken = [("src/store/postgres/claim.rs", line)];
        fails(rules::statements, &broken, "src/store/postgres/claim.rs:1", &whole);
    }
}

#[test]
fn a_kind_may_not_name_the_store_or_the_engine() {
    let kind = ("workers/http/mod.rs", "impl Downstream for Http {}");
    let cli = ("workers/cli/mod.rs", "use aftercommit::store::connect;");
    for line in ["use aftercommit::store::Claim;", "use aftercommit::engine::Engine;", "sqlx::query(x)"] {
        let broken = [kind, ("workers/http/request.rs", line)];
        fails(rules::arrows, &broken, "workers/http/request.rs:1", &[kind, cli]);
    }
}

#[test]
fn databases_have_the_same_files_but_for_what_only_one_can_do() {
    let whole = [
        ("src/store/mod.rs", ""),
        ("src/store/postgres/claim.rs", ""),
        ("src/store/postgres/wake.rs", ""),
        ("src/store/sqlite/claim.rs", ""),
    ];
    let broken = [&whole[..], &[("src/store/postgres/settle.rs", "")]].concat();
    fails(rules::store_files, &broken, "src/store/sqlite/settle.rs is missing", &whole);
}

#[test]
fn migrations_have_the_same_names_and_no_gaps() {
    let whole = [("migrations/postgres/0001_a.sql", ""), ("migrations/sqlite/0001_a.sql", "")];
    let more = [&whole[..], &[("migrations/postgres/0002_b.sql", "")]].concat();
    fails(rules::migrations, &more, "migrations/sqlite/0002_b.sql is missing", &whole);
    fails(rules::migrations, &[("migrations/postgres/0002_b.sql", "")], "0001_NAME.sql", &whole);
}

fn readme(diagram: &str, follow: impl Fn(State) -> String) -> String {
    let rows: String = State::ALL
        .iter()
        .map(|state| format!("| `{state}` | what it means, see `x` | {} |\n", follow(*state)))
        .collect();
    format!(
        "# x\n\n## States\n\n```\n{diagram}\n```\n\n| state | means | becomes |\n|---|---|---|\n{rows}\n## Next\n\n| `other` | a | `b` |\n"
    )
}

fn legal(from: State) -> String {
    let words = TRANSITIONS.iter().filter(|(f, ..)| *f == from).map(|(_, to, _)| format!("`{to}`"));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_readmes_states_are_those_of_the_code() {
    let all = State::ALL.map(State::as_str).join(" ");
    let whole = readme(&all, legal);
    let undrawn = readme(&all.replace("retrying", "trying"), legal);
    let wrong =
        readme(&all, |from| if from == State::Succeeded { "`ready`".to_owned() } else { legal(from) });
    let sql = State::ALL.map(|state| format!("'{state}'")).join(",");
    let less = sql.replace("'expired'", "'gone'");
    let with = |readme, sql| house(&[("README.md", readme), ("migrations/sqlite/0001_a.sql", sql)]);
    let whole = with(&whole, &sql);
    assert_eq!(rules::states(&whole), Vec::<String>::new());
    for (broken, what) in [
        (with(&undrawn, &sql), "retrying is not in the diagram"),
        (with(&wrong, &sql), "succeeded becomes"),
        (with(&readme(&all, legal), &less), "no statement can show the state expired"),
    ] {
        let complaints = rules::states(&broken);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains(what), "{complaints:?}");
    }
}

#[test]
fn a_file_that_nobody_compiles_is_found() {
    let whole = [
        ("tests/main.rs", "#[cfg(test)]\nmod store;\nmod tidy;"),
        ("tests/store/mod.rs", "mod claim;"),
        ("tests/store/claim.rs", ""),
        ("tests/tidy.rs", "mod rules;"),
        ("tests/tidy/rules.rs", ""),
        ("src/lib.rs", "pub mod state;"),
        ("src/state.rs", "#[cfg(test)]\npub(crate) mod tests;"),
        ("src/state/tests.rs", ""),
    ];
    for orphan in
        ["tests/store/settle.rs", "tests/e2e.rs", "tests/e2e/mod.rs", "src/state/more.rs", "src/stat.rs"]
    {
        let broken = [&whole[..], &[(orphan, "")]].concat();
        fails(rules::mod_lists, &broken, &format!("{orphan} is compiled by nobody"), &whole);
    }
    let commented = [("tests/main.rs", "// mod store;"), ("tests/store/mod.rs", "")];
    fails(rules::mod_lists, &commented, "tests/store/mod.rs", &whole);
}

#[test]
fn a_module_that_the_map_does_not_show_is_found() {
    let lib = ("src/lib.rs", "pub mod state;\nmod clock;");
    let whole = [lib, ("ARCHITECTURE.md", "`state.rs` and `clock`")];
    fails(rules::code_map, &[lib, ("ARCHITECTURE.md", "state.rs")], "clock (src/lib.rs)", &whole);
}

#[test]
fn a_path_of_somebodys_machine_is_found() {
    let path = ["let file = \"", "/ho", "me/mika/shop.db\";"].concat();
    let address = ["https://example.com", "/ho", "me/page"].concat();
    fails(rules::machine_paths, &[("src/a.rs", &path)], "src/a.rs:1", &[("README.md", &address)]);
}

#[test]
fn what_is_left_to_be_done_is_found() {
    let marker = ["fn a() { to", "do!() }"].concat();
    let note = ["// FIX", "ME: later"].concat();
    fails(rules::leftovers, &[("src/a.rs", &marker)], "src/a.rs:1", &[("src/a.rs", "fn a() {}")]);
    fails(rules::leftovers, &[("tests/run", &note)], "tests/run:1", &[("README.md", "what to do")]);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let whole = [
        ("README.md", "[a](docs/a.md#part) [b](docs/) [c](https://example.com/x) [d](#here)"),
        ("docs/a.md", ""),
    ];
    fails(rules::links, &[("README.md", "[a](docs/b.md)")], "docs/b.md", &whole);
}
