//! DASH-06: a list that shows none says that there is none, or how far it looked; whoever looks on finds what is there.

use aftercommit::{
    EffectId,
    store::{Filter, SEARCH_WINDOW},
};
use serde_json::Value;

use super::{
    super::{
        api::{get, worker},
        forms,
    },
    site, text, unescaped,
};
use crate::support::{Settling, TestDatabase, Worker, on_every_database};

on_every_database! {
    a_few_that_ended_are_found_below_a_window_of_pending_ones,
}

/// How many there are of each kind that is looked for.
const FEW: usize = 3;

/// More pending effects than one look goes through, written at once.
async fn pending(db: &TestDatabase) {
    let more = SEARCH_WINDOW + 50;
    let sql = format!(
        "INSERT INTO aftercommit.effects (downstream, idempotency_key, operation)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {more})
         SELECT 'pay', 'pending-' || i, 'often' FROM n"
    );
    db.sql.execute(&sql).await;
}

/// Effects that ended long before: applied, and refused in words of their own. Newest first.
async fn ended(db: &TestDatabase, worker: &Worker) -> (Vec<i64>, Vec<i64>) {
    let (mut applied, mut refused) = (Vec::new(), Vec::new());
    for n in 0..2 * FEW {
        let id = db.insert_with("pay", &format!("old-{n}"), &[("operation", "'rare'")]).await;
        let settling = Settling::of(&worker.claim_one("pay").await);
        if n.is_multiple_of(2) {
            worker.settle(settling.succeed()).await;
            applied.push(id.get());
        } else {
            worker.settle(settling.fail("Account frozen")).await;
            refused.push(id.get());
        }
    }
    applied.reverse();
    refused.reverse();
    (applied, refused)
}

fn ids(page: &Value) -> Vec<i64> {
    let effects = page["effects"].as_array().unwrap_or_else(|| panic!("no list: {page}"));
    effects.iter().map(|effect| effect["id"].as_i64().expect("a number")).collect()
}

async fn a_few_that_ended_are_found_below_a_window_of_pending_ones(db: &TestDatabase) {
    let worker = worker(db).await;
    let (applied, refused) = ended(db, &worker).await;
    pending(db).await;
    let newest = db.store.effects(&Filter { limit: 1, ..Filter::default() }).await.expect("a page");
    assert!(
        newest.effects[0].id > EffectId::new(i64::from(SEARCH_WINDOW)),
        "more than one look goes through"
    );
    let site = site(db).await;
    // What indexes serve is found at once, whatever is newer.
    for (query, wanted) in [("state=succeeded", &applied), ("state=failed", &refused)] {
        let page = get(&site, &format!("effects?{query}")).await;
        assert_eq!((&ids(&page), &page["searched"]), (wanted, &Value::Null), "{query}");
    }
    let list = forms::page(&site, "effects?q=state:succeeded").await;
    for id in &applied {
        assert!(list.body.contains(&format!("href=\"./effects/{id}\"")), "{id}: {list:?}");
    }
    // So is what is looked for among those that a state leaves.
    let page = get(&site, "effects?state=failed&error=account+frozen").await;
    assert_eq!((&ids(&page), &page["searched"]), (&refused, &FEW.into()));
    // What is looked for among all of them is not in the first window: that is said, and where the next one begins.
    looked_for_among_all(&site, &[applied, refused].concat()).await;
}

async fn looked_for_among_all(site: &super::Site, rare: &[i64]) {
    let (mut found, mut looks, mut next) = (Vec::new(), 0, String::new());
    loop {
        let page = get(site, &format!("effects?operation=rare{next}")).await;
        let searched = page["searched"].as_u64().expect("it says how many it looked at");
        found.extend(ids(&page));
        looks += 1;
        match page["next"].as_i64() {
            Some(before) => next = format!("&before={before}"),
            None => break,
        }
        assert!(searched > 0 && looks < 10, "{page}");
    }
    let mut rare = rare.to_vec();
    rare.sort_unstable();
    rare.reverse();
    assert_eq!(found, rare, "after {looks} looks");
    assert!(looks > 1, "one look goes through {SEARCH_WINDOW}");
    // People are told the same, and led on.
    let first = forms::page(site, "effects?q=operation:rare").await;
    let said = text(&first.body);
    assert!(said.contains("No effect matches.") && said.contains("Looked through 10,000"), "{said}");
    let (_, link) = first.body.split_once("rel=\"next\" href=\"./").expect("a way to look further back");
    let link = unescaped(link.split('"').next().expect("it ends")).replace("&amp;", "&");
    let second = forms::page(site, &link).await;
    for id in rare {
        assert!(second.body.contains(&format!("href=\"./effects/{id}\"")), "{link}: {}", text(&second.body));
    }
}
