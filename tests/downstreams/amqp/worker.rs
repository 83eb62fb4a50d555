//! Guarantee: a whole worker puts each effect into the queue once, under its key.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::SystemClock,
    downstream::Served,
    engine::{Config, Engine, Stop},
};

use super::{
    rabbit::{Rabbit, shared_url, unique},
    served,
};
use crate::support::{TestDatabase, on_every_database, within};

on_every_database!(each_effect_is_one_message);

pub(crate) fn engine(db: &TestDatabase, served: Served, concurrency: u32) -> Engine {
    let config = Config {
        worker: "w".into(),
        version: "0.0.0-test",
        poll: Duration::from_millis(50),
        concurrency,
        shutdown_grace: Duration::from_secs(20),
        sweep_interval: Duration::from_millis(50),
        retention: None,
    };
    Engine::new(db.store.clone(), vec![served], config, Arc::new(SystemClock))
        .expect("the worker's settings fit")
}

async fn each_effect_is_one_message(db: &TestDatabase) {
    let (rabbit, queue) = (Rabbit::at(&shared_url()).await, unique("worker"));
    rabbit.queue(&queue).await;
    let mut expected: Vec<String> = (0..300).map(|n| format!("p/k-{n}")).collect();
    db.insert_many("orders", "k", expected.len()).await;
    let table = format!("routing_key = \"{queue}\"\nkey_prefix = \"p/\"\nconcurrency = 100");
    let engine = engine(db, served(&shared_url(), &table), 100);
    within(Duration::from_secs(60), "draining", engine.run_until_idle(Stop::default()))
        .await
        .expect("the worker runs");
    let mut ids = rabbit.take_ids(&queue).await;
    ids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}
