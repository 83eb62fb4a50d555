//! Guarantee: each role may do what `matrix.txt` declares and nothing else, on every object there is, read from the catalogs.

use std::collections::BTreeSet;

use crate::support::{TestDatabase, on_postgres};

on_postgres! {
    every_right_is_declared,
    a_right_that_is_not_declared_is_seen,
}

/// The declared lines.
fn declared() -> BTreeSet<String> {
    let lines = include_str!("matrix.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(str::to_owned).collect()
}

async fn found(db: &TestDatabase) -> BTreeSet<String> {
    let rows = db.sql.rows(include_str!("matrix.sql")).await;
    rows.into_iter().map(|mut row| row.remove("line").flatten().expect("a line")).collect()
}

async fn every_right_is_declared(db: &TestDatabase) {
    let (found, declared) = (found(db).await, declared());
    let undeclared: Vec<_> = found.difference(&declared).collect();
    let missing: Vec<_> = declared.difference(&found).collect();
    assert!(
        undeclared.is_empty() && missing.is_empty(),
        "in the catalogs and not in tests/store/matrix.txt: {undeclared:#?}\ndeclared there and not so: {missing:#?}"
    );
}

/// The test can fail: for a new table, a column, a function that PUBLIC may call, a right too many.
async fn a_right_that_is_not_declared_is_seen(db: &TestDatabase) {
    for (change, seen) in [
        ("CREATE TABLE aftercommit.new_one (a int)", "new_one - - - - -"),
        ("GRANT UPDATE (target) ON aftercommit.effects TO aftercommit_app", "effects(target) - aw - - -"),
        ("CREATE FUNCTION aftercommit.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "f() X X X X X"),
        ("GRANT TRUNCATE ON aftercommit.audit TO aftercommit_worker", "audit - - Dr r ar"),
        ("GRANT CREATE ON SCHEMA aftercommit TO aftercommit_app", "schema - CU U U U"),
    ] {
        db.sql.execute(change).await;
        let found = found(db).await;
        assert!(found.contains(seen) && !declared().contains(seen), "{change}: {found:#?}");
    }
}
