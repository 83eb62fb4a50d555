//! Guarantee: of racing requests with one key one acts, and nobody is told what was not so at any moment of its call (IDEMP-IN-01,
//! -13). A *false mismatch* is one while no other request held the key, open or answered; a *false "in progress"* is one while
//! no transaction acted on the same request.

use std::{str::FromStr as _, sync::Arc, time::Duration};

use aftercommit::{
    enqueue::Pooled,
    guard::{Begun, GuardError, Request, Requests as _},
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::{
    sync::{Barrier, Semaphore},
    task::JoinSet,
    time::Instant,
};

use super::{orders, shop};
use crate::support::{
    Chance, Engine, TestDatabase, answered, on_every_database, on_postgres, request, within,
};

on_every_database! { of_sixteen_that_race_one_acts }

on_postgres! {
    ten_thousand_racing_calls_are_told_what_is_so,
    through_a_transaction_pooler_too,
}

const PATIENCE: Duration = Duration::from_secs(110);
const RACERS: usize = 16;

/// Two pools, as of two server processes.
async fn of_sixteen_that_race_one_acts(db: &TestDatabase) {
    shop(db).await;
    let rounds = match db.engine {
        Engine::Postgres => 1000,
        // One writer: each call of a round waits for those before it.
        Engine::Sqlite => 30,
    };
    let pools = [db.sql.clone(), db.another_sql().await];
    let together = Arc::new(Barrier::new(RACERS));
    let mut racers = JoinSet::new();
    for racer in 0..RACERS {
        let (sql, together) = (pools[racer % 2].clone(), together.clone());
        racers.spawn(async move {
            let mut told = Vec::new();
            for round in 0..rounds {
                let request = request("shop", &format!("k{round}"), "1");
                together.wait().await;
                let mut tx = sql.begin().await;
                let begun = tx.begin_request(&request).await.expect("it is told");
                if begun == Begun::New {
                    tx.execute(&format!("INSERT INTO orders VALUES ('{round}')")).await;
                    tx.finish_request(&request, &answered(201, &round.to_string())).await.expect("finished");
                    tx.commit().await;
                } else {
                    tx.rollback().await;
                }
                told.push(begun);
            }
            told
        });
    }
    let told = within(PATIENCE, "the racers' end", racers.join_all()).await;
    for round in 0..rounds {
        let round_told: Vec<&Begun> = told.iter().map(|of_racer| &of_racer[round]).collect();
        assert_eq!(round_told.iter().filter(|told| ***told == Begun::New).count(), 1, "round {round}");
        let replay = Begun::Replay(answered(201, &round.to_string()));
        let expected = |told: &Begun| match told {
            Begun::New => true,
            Begun::Replay(_) => *told == replay,
            Begun::InProgress => db.engine == Engine::Postgres,
            Begun::Mismatch => false,
        };
        assert!(round_told.iter().all(|told| expected(told)), "round {round}: {round_told:?}");
    }
    assert_eq!(orders(db).await, i64::try_from(rounds).expect("few"), "each acted once");
}

/// A connection that takes part.
enum Line {
    Direct(PgConnection),
    Pooled(PgConnection),
}

impl Line {
    async fn run(&mut self, sql: String) {
        let (Self::Direct(connection) | Self::Pooled(connection)) = self;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop).expect("it runs");
    }

    async fn ask(&mut self, request: &Request) -> Result<Begun, GuardError> {
        match self {
            Self::Direct(connection) => connection.begin_request(request).await,
            Self::Pooled(connection) => Pooled(connection).begin_request(request).await,
        }
    }

    async fn finish(&mut self, request: &Request) {
        match self {
            Self::Direct(connection) => connection.finish_request(request, &answered(201, "")).await,
            Self::Pooled(connection) => Pooled(connection).finish_request(request, &answered(201, "")).await,
        }
        .expect("it is finished");
    }
}

/// What a call was told; `None`: to retry with a younger snapshot.
#[derive(Debug)]
struct Call {
    print: u64,
    began: Instant,
    told_at: Instant,
    told: Option<Begun>,
    /// Of the one that acts: when it began to end, and was over.
    ends: Option<(Instant, Instant)>,
    committed: bool,
}

impl Call {
    /// Whether this one acted on the key, or had answered it, at some moment of `other`.
    fn held_during(&self, other: &Self) -> bool {
        let Some((_, over)) = self.ends else { return false };
        self.began <= other.told_at && (self.committed || over >= other.began)
    }

    fn was_open_during(&self, other: &Self) -> bool {
        self.ends.is_some_and(|(_, over)| self.began <= other.told_at && over >= other.began)
    }
}

/// What is false about a round; nothing, if all is well.
fn falsehoods(round: &[Call]) -> Vec<String> {
    let mut found = Vec::new();
    for call in round {
        let others = || round.iter().filter(|other| !std::ptr::eq(*other, call));
        let so = match &call.told {
            None => true,
            Some(Begun::New) => others().all(|other| {
                // Two that act do not overlap, and nobody acts after one that was committed.
                let (Some((ends, _)), Some((other_ends, _))) = (call.ends, other.ends) else { return true };
                (ends <= other.told_at && !call.committed) || (other_ends <= call.told_at && !other.committed)
            }),
            Some(Begun::Replay(_)) => others().any(|other| other.committed && other.print == call.print),
            Some(Begun::InProgress) => {
                others().any(|other| other.print == call.print && other.was_open_during(call))
            }
            Some(Begun::Mismatch) => {
                others().any(|other| other.print != call.print && other.held_during(call))
            }
        };
        if !so {
            found.push(format!("{call:?}"));
        }
    }
    found
}

/// One call of a round, in any isolation; whoever acts commits or rolls back at once, or when all others were told.
async fn call(line: &mut Line, chance: &mut Chance, round: usize, others_told: (&Semaphore, u32)) -> Call {
    let levels = ["READ COMMITTED", "READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    let level = levels[usize::try_from(chance.below(5)).expect("small")];
    let print = chance.below(2);
    let (how, request) = (chance.below(4), request("shop", &format!("k{round}"), &print.to_string()));
    let began = Instant::now();
    line.run(format!("BEGIN ISOLATION LEVEL {level}")).await;
    let told = line.ask(&request).await;
    let told_at = Instant::now();
    let mut call = Call { print, began, told_at, told: None, ends: None, committed: false };
    match told {
        Ok(told) => call.told = Some(told),
        Err(GuardError::Database(error)) => {
            let code = error.as_database_error().and_then(|said| said.code().map(|code| code.into_owned()));
            assert_eq!(code.as_deref(), Some("40001"), "{error}");
            assert_ne!(level, "READ COMMITTED");
        }
        Err(error) => panic!("{error}"),
    }
    others_told.0.add_permits(1);
    if call.told == Some(Begun::New) {
        if how == 0 {
            // Its own and theirs.
            others_told.0.acquire_many(others_told.1).await.expect("open").forget();
            others_told.0.add_permits(usize::try_from(others_told.1).expect("small"));
        }
        let commits = how != 1;
        if commits {
            line.finish(&request).await;
        }
        let ending = Instant::now();
        line.run(if commits { "COMMIT" } else { "ROLLBACK" }.to_owned()).await;
        call.ends = Some((ending, Instant::now()));
        call.committed = commits;
    } else {
        line.run("ROLLBACK".to_owned()).await;
    }
    call
}

async fn race(lines: Vec<Line>, rounds: usize) {
    let mut chance = Chance::seeded();
    let n = lines.len();
    let together = Arc::new(Barrier::new(n));
    let told: Arc<Vec<Semaphore>> = Arc::new((0..rounds).map(|_| Semaphore::new(0)).collect());
    let mut racers = JoinSet::new();
    for mut line in lines {
        let (together, told, mut chance) = (together.clone(), told.clone(), chance.fork());
        racers.spawn(async move {
            let mut calls = Vec::with_capacity(rounds);
            for (round, told) in told.iter().enumerate() {
                together.wait().await;
                let all = u32::try_from(n).expect("few");
                calls.push(call(&mut line, &mut chance, round, (told, all)).await);
            }
            let (Line::Direct(connection) | Line::Pooled(connection)) = line;
            connection.close().await.expect("it closes");
            calls
        });
    }
    let mut calls = within(PATIENCE, "the racers' end", racers.join_all()).await;
    let (mut new, mut mismatches, mut in_progress, mut replays) = (0, 0, 0, 0);
    for round in (0..rounds).rev() {
        let told: Vec<Call> = calls.iter_mut().map(|of_racer| of_racer.pop().expect("a call")).collect();
        let found = falsehoods(&told);
        assert!(found.is_empty(), "round {round}: {found:#?}\nof {told:#?}");
        for call in &told {
            match call.told {
                Some(Begun::New) => new += 1,
                Some(Begun::Mismatch) => mismatches += 1,
                Some(Begun::InProgress) => in_progress += 1,
                Some(Begun::Replay(_)) => replays += 1,
                None => {}
            }
        }
    }
    println!("{new} new, {replays} replays, {in_progress} in progress, {mismatches} mismatches");
    // Each round's first acted; and each verdict was met often enough for the test to mean something.
    assert!(new >= rounds && mismatches > rounds && in_progress > rounds / 4, "too few of a kind");
}

async fn ten_thousand_racing_calls_are_told_what_is_so(db: &TestDatabase) {
    let options = PgConnectOptions::from_str(&db.url).expect("a URL");
    let mut lines = Vec::new();
    for _ in 0..8 {
        lines.push(Line::Direct(options.connect().await.expect("it connects")));
    }
    race(lines, 1250).await;
}

async fn through_a_transaction_pooler_too(db: &TestDatabase) {
    let options = PgConnectOptions::from_str(&db.pooled_url()).expect("a URL").extra_float_digits(None);
    let mut lines = Vec::new();
    for _ in 0..12 {
        lines.push(Line::Pooled(options.connect().await.expect("it connects")));
    }
    race(lines, 150).await;
}

/// The judge can find each fault.
#[test]
fn a_falsehood_is_found() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let of = |print: u64, (began, told_at): (u64, u64), told: Begun| Call {
        print,
        began: at(began),
        told_at: at(told_at),
        told: Some(told),
        ends: None,
        committed: false,
    };
    let acted = |print: u64, times: (u64, u64), (ends, over): (u64, u64), committed: bool| Call {
        ends: Some((at(ends), at(over))),
        committed,
        ..of(print, times, Begun::New)
    };
    let replay = || Begun::Replay(answered(201, ""));
    let well = [
        acted(0, (0, 1), (5, 6), false),
        acted(1, (5, 7), (8, 9), true),
        of(0, (0, 2), Begun::InProgress),
        of(1, (5, 6), Begun::Mismatch),
        of(0, (20, 21), Begun::Mismatch),
        of(1, (20, 21), replay()),
    ];
    assert_eq!(falsehoods(&well), Vec::<String>::new());
    let wrong = [
        of(1, (10, 11), Begun::Mismatch),
        of(0, (20, 21), Begun::InProgress),
        of(0, (20, 21), replay()),
        acted(0, (20, 21), (22, 23), true),
        acted(0, (6, 7), (8, 9), false),
    ];
    for call in wrong {
        let round = [acted(0, (0, 1), (5, 6), false), acted(1, (5, 7), (8, 9), true), call];
        assert!(!falsehoods(&round).is_empty(), "{:?}", round[2]);
    }
}
