//! Defends the house itself: what style and architecture ask for and a machine can check. Each rule is a function from the
//! files to complaints ([`rules`]); each is shown to be able to fail ([`can_fail`]), because a rule that cannot is decoration.

mod can_fail;
mod rules;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The repository's text files by path from its root, with `/` between the parts.
pub(crate) type Tree = BTreeMap<String, String>;

/// Where our own text lives; everything else at the top is a build's or an editor's.
const ROOMS: [&str; 10] =
    ["src", "workers", "dashboard", "tests", "migrations", "examples", "benches", "docs", "chaos", ".ci"];
/// What tools put into rooms that are ours.
const NOT_OURS: [&str; 5] = ["target", "node_modules", "__pycache__", ".venv", "proptest-regressions"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workers/ lies in the root").to_owned()
}

fn read() -> Tree {
    let root = root();
    let mut tree = Tree::new();
    for room in ROOMS {
        gather(&root, Path::new(room), &mut tree);
    }
    for entry in fs::read_dir(&root).expect("the root can be listed").flatten() {
        if entry.path().is_file() && entry.file_name() != ".git" {
            take(&root, Path::new(&entry.file_name()), &mut tree);
        }
    }
    tree
}

fn gather(root: &Path, folder: &Path, tree: &mut Tree) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let path = folder.join(&name);
        if NOT_OURS.iter().any(|theirs| name == *theirs) {
            continue;
        }
        if entry.path().is_dir() {
            gather(root, &path, tree);
        } else {
            take(root, &path, tree);
        }
    }
}

/// Files that are not text have no lines to complain about.
fn take(root: &Path, path: &Path, tree: &mut Tree) {
    let Ok(text) = fs::read_to_string(root.join(path)) else { return };
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    tree.insert(parts.join("/"), text);
}

fn hold(rule: fn(&Tree) -> Vec<String>) {
    let complaints = rule(&read());
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn the_rules_see_the_house() {
    let tree = read();
    for file in
        ["src/lib.rs", "workers/main.rs", "dashboard/lib.rs", "tests/main.rs", "README.md", "Cargo.toml"]
    {
        assert!(tree.contains_key(file), "{file} is not seen");
    }
    assert!(rules::kinds(&tree).contains("http"), "no downstream kind is seen: {:?}", rules::kinds(&tree));
    assert_eq!(rules::folders(&tree, "src/store/").len(), 2, "the databases under src/store");
    assert_eq!(rules::folders(&tree, "migrations/").len(), 2, "the databases under migrations");
}

#[test]
fn files_are_short() {
    hold(rules::file_sizes);
}

#[test]
fn arrows_point_one_way() {
    hold(rules::arrows);
}

#[test]
fn databases_have_the_same_files() {
    hold(rules::store_files);
}

#[test]
fn statements_on_postgres_run_through_one_place() {
    hold(rules::statements);
}

#[test]
fn migrations_have_the_same_numbers_and_names() {
    hold(rules::migrations);
}

#[test]
fn states_are_those_of_the_readme_and_of_the_schemas() {
    hold(rules::states);
}

#[test]
fn every_rust_file_is_in_a_mod_list() {
    hold(rules::mod_lists);
}

#[test]
fn every_top_level_module_is_on_the_map() {
    hold(rules::code_map);
}

#[test]
fn no_path_of_anybodys_machine_is_written_down() {
    hold(rules::machine_paths);
}

#[test]
fn nothing_is_left_to_be_done_in_code() {
    hold(rules::leftovers);
}

#[test]
fn links_between_documents_lead_somewhere() {
    hold(rules::links);
}
