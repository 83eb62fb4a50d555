//! OUTBOX-01, for whoever looks: PostgreSQL hands out numbers before the commit, so that an effect may appear below others that were
//! seen already. It is told of, and no list skips it.

use std::collections::BTreeSet;

use aftercommit_dashboard::Role;
use serde_json::Value;

use super::{
    super::{
        Site,
        api::{get, worker},
        live::Ear,
        token,
    },
    site,
};
use crate::support::{TestDatabase, insert_sql, on_postgres};

on_postgres! {
    what_commits_late_is_told_of_and_stands_in_its_place,
    a_list_that_is_being_read_misses_nothing_that_commits_below_it,
}

async fn ear(site: &Site) -> Ear {
    let bearer = format!("Authorization: Bearer {}\r\n", token(Role::Viewer));
    Ear::at(site.address, "/api/v1/events", &bearer).await
}

/// How many effects there are by these counts.
fn all(counts: &Value) -> u64 {
    let counts = counts["counts"].as_array().expect("a list");
    counts.iter().map(|count| count["effects"].as_u64().expect("a number")).sum()
}

fn keys(page: &Value) -> Vec<String> {
    let effects = page["effects"].as_array().unwrap_or_else(|| panic!("no list: {page}"));
    effects.iter().map(|effect| effect["idempotency_key"].as_str().expect("a key").to_owned()).collect()
}

/// All pages of the list, `limit` at a time.
async fn listed(site: &Site, query: &str, limit: usize) -> Vec<String> {
    let (mut listed, mut next) = (Vec::new(), String::new());
    loop {
        let page = get(site, &format!("effects?limit={limit}{query}{next}")).await;
        listed.extend(keys(&page));
        match page["next"].as_i64() {
            Some(before) => next = format!("&before={before}"),
            None => return listed,
        }
    }
}

async fn what_commits_late_is_told_of_and_stands_in_its_place(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let mut ear = ear(&site).await;
    ear.counts("how things stand now", |_| true).await;
    let (mut first, mut second) = (db.sql.begin().await, db.sql.begin().await);
    first.execute(&insert_sql("pay", "late-1", &[])).await;
    second.execute(&insert_sql("pay", "late-2", &[])).await;
    let newest = *db.insert_many("pay", "new", 60).await.last().expect("sixty");
    let told = ear.counts("the sixty", |counts| all(counts) == 60).await;
    assert_eq!(told["newest"], newest.get());
    // The second commits first; neither is the newest.
    for (tx, n) in [(second, 61), (first, 62)] {
        tx.commit().await;
        let told = ear.counts("one more, though none is newer", |counts| all(counts) == n).await;
        assert_eq!(told["newest"], newest.get(), "{told}");
    }
    let mut wanted: Vec<String> = ["late-1", "late-2"].map(str::to_owned).to_vec();
    wanted.extend((0..60).map(|n| format!("new-{n}")));
    wanted.reverse();
    for query in ["", "&state=ready", "&downstream=pay"] {
        for limit in [1, 7, 50, 62, 100] {
            assert_eq!(listed(&site, query, limit).await, wanted, "{query} by {limit}");
        }
    }
}

async fn a_list_that_is_being_read_misses_nothing_that_commits_below_it(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    db.insert_many("pay", "old", 5).await;
    let mut late = db.sql.begin().await;
    late.execute(&insert_sql("pay", "late", &[])).await;
    db.insert_many("pay", "new", 5).await;
    let first = get(&site, "effects?limit=5").await;
    late.commit().await;
    let second = get(&site, &format!("effects?limit=5&before={}", first["next"])).await;
    assert_eq!(keys(&second), ["late", "old-4", "old-3", "old-2", "old-1"]);
    let third = get(&site, &format!("effects?limit=5&before={}", second["next"])).await;
    assert_eq!((keys(&third), &third["next"]), (vec!["old-0".to_owned()], &Value::Null));
    let seen: BTreeSet<String> = [first, second, third].iter().flat_map(keys).collect();
    assert_eq!(seen.len(), 11, "{seen:?}");
}
