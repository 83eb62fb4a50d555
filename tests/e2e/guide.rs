//! docs/guard.md is for strangers, who copy: each of its snippets is run, or stands word for word in an example that is run.

use std::{fs, path::Path, time::Duration};

use tokio::process::Command;

use super::{
    environment,
    processes::run_ok,
    shop::{Shop, payments},
};

const SOON: Duration = Duration::from_secs(60);

/// A fenced block: its language and its lines.
struct Snippet {
    language: String,
    text: String,
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn snippets(document: &str) -> Vec<Snippet> {
    let blocks = document.split("\n```").skip(1).step_by(2);
    blocks
        .map(|block| {
            let (language, text) = block.split_once('\n').expect("a block has lines");
            Snippet { language: language.to_owned(), text: text.to_owned() }
        })
        .collect()
}

fn guide(language: &str) -> Vec<String> {
    let all = snippets(&read(&environment::file("docs/guard.md")));
    all.into_iter().filter(|snippet| snippet.language == language).map(|snippet| snippet.text).collect()
}

/// Its words, without the spaces between them: how a line is broken or indented says nothing.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every example, as words.
fn examples() -> Vec<(String, String)> {
    let entries = fs::read_dir(environment::file("examples")).expect("the folder is there").flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    files.map(|path| (path.display().to_string(), words(&read(&path)))).collect()
}

fn stands_in_an_example(text: &str) {
    let wanted = words(text);
    assert!(!wanted.is_empty());
    let found = examples().iter().any(|(_, example)| example.contains(&wanted));
    assert!(found, "no example has this piece of docs/guard.md:\n{text}");
}

/// The statements of a block of SQL, without its comments.
fn statements(sql: &str) -> Vec<String> {
    let code: Vec<&str> = sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    code.join("\n").split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

fn is_for_sqlite(sql: &str) -> bool {
    sql.contains("aftercommit_")
}

#[test]
fn what_the_guide_shows_in_a_language_stands_in_an_example() {
    let (python, rust) = (guide("python"), guide("rust"));
    assert!(python.len() >= 4 && !rust.is_empty(), "the blocks are not seen");
    python.iter().chain(&rust).for_each(|snippet| stands_in_an_example(snippet));
}

#[test]
fn the_statements_for_sqlite_are_those_of_the_example() {
    let blocks: Vec<String> = guide("sql").into_iter().filter(|sql| is_for_sqlite(sql)).collect();
    assert_eq!(blocks.len(), 1, "one block has all the statements");
    let statements = statements(&blocks[0]);
    assert_eq!(statements.len(), 6, "{statements:#?}");
    statements.iter().for_each(|statement| stands_in_an_example(statement));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_statements_for_postgresql_run_and_leave_what_they_say() {
    let shop = Shop::on_postgres("guide").await;
    let config = shop.configure("worker", &payments("http://127.0.0.1:9"));
    shop.migrate(&config).await;
    shop.database
        .execute(
            "CREATE TABLE stock (item text, available int); INSERT INTO stock VALUES ('ticket', 0);
             CREATE TABLE shipments (order_id text)",
        )
        .await;
    let blocks: Vec<String> = guide("sql").into_iter().filter(|sql| !is_for_sqlite(sql)).collect();
    assert_eq!(blocks.len(), 3);
    for block in &blocks {
        let mut psql = Command::new(environment::postgres_program("psql"));
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", &shop.database.url(), "-c", block]);
        run_ok(&mut psql, SOON).await;
    }
    let said = async |key: &str, column: &str| {
        let ask = format!(
            "SELECT CAST({column} AS text) FROM aftercommit.begin_request('tenant-1', '{key}', 'a hash of the request')"
        );
        shop.database.text(&ask).await
    };
    assert_eq!(said("8e03978e", "status || response_status").await, "replay201");
    assert_eq!(said("8e03978e", "convert_from(response_body, 'UTF8')").await, r#"{"order":"A-17"}"#);
    assert_eq!(said("9a41c2d7", "status || response_status").await, "replay410");
    let derived =
        shop.database.text("SELECT aftercommit.derive_key('tenant-1', '8e03978e', 'payments/charge')").await;
    assert_eq!(
        shop.database.effects().await.iter().map(|effect| &effect.key).collect::<Vec<_>>(),
        [&derived]
    );
    let accepted = "SELECT CAST(aftercommit.inbox_accept('shipping', 'message-17') AS text)";
    assert_eq!(shop.database.text(accepted).await, "false");
}

/// The keys that the guide's Python derives are those of SQL and Rust.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_derived_in_python_are_those_of_the_shared_vectors() {
    let check = "import json, sys; sys.path.insert(0, sys.argv[1]); sys.dont_write_bytecode = True
from reservation import derive_key
part = lambda part: part if isinstance(part, str) else part['repeat'][0] * part['repeat'][1]
vectors = json.load(open(sys.argv[2]))['vectors']
for v in vectors: assert derive_key(part(v['scope']), part(v['request_key']), part(v['name'])) == v['key'], v['case']
print(len(vectors))";
    let mut python = Command::new(environment::python());
    python.args(["-c", check]).arg(environment::file("examples"));
    python.arg(environment::file("tests/vectors/derive_key.json"));
    let checked: usize = run_ok(&mut python, SOON).await.trim().parse().expect("a number");
    assert!(checked >= 12);
}
