//! Brings effects into each state, the way an effect gets there.

use std::time::Duration;

use aftercommit::{
    EffectId,
    clock::Timestamp,
    contract::OnUnknown,
    decision::Decision,
    state::State,
    store::{Acted, Claim, RegisteredTerms, Settled},
    verb::{Actor, Verb},
};

use crate::support::{Settling, TestDatabase, Worker, key_terms, none_terms, registered};

/// An hour: later than any test.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A person with a reason, who confirmed what they were asked to.
pub(crate) fn person() -> Actor {
    let reason = Some("the vendor said so".to_owned());
    Actor { who: "ann".to_owned(), reason, confirmed: true, ..Actor::default() }
}

/// An effect in a state, at a downstream of its own.
pub(crate) struct Stage {
    /// Serves the downstream.
    pub(crate) worker: Worker,
    /// The downstream's name.
    pub(crate) downstream: String,
}

impl Stage {
    /// A downstream with these terms, and a worker `w1` that serves it.
    pub(crate) async fn at(db: &TestDatabase, downstream: &str, terms: RegisteredTerms) -> Self {
        let worker = Worker::start(&db.store, "w1", vec![registered(downstream, terms)]).await;
        Self { worker, downstream: downstream.to_owned() }
    }

    /// A downstream that deduplicates by our key.
    pub(crate) async fn by_key(db: &TestDatabase, downstream: &str) -> Self {
        Self::at(db, downstream, key_terms()).await
    }

    /// A downstream that cannot deduplicate, and holds what is unknown.
    pub(crate) async fn hold(db: &TestDatabase, downstream: &str) -> Self {
        Self::at(db, downstream, none_terms(OnUnknown::Hold)).await
    }

    /// A new effect, claimed.
    pub(crate) async fn claimed(&self, db: &TestDatabase, key: &str) -> Claim {
        let id = db.insert(&self.downstream, key).await;
        let claim = self.worker.claim_one(&self.downstream).await;
        assert_eq!(claim.effect.id, id, "the stage's downstream had another due effect");
        claim
    }

    /// A new effect, attempted once with an unknown outcome, in doubt.
    pub(crate) async fn parked(&self, db: &TestDatabase, key: &str) -> EffectId {
        let claim = self.claimed(db, key).await;
        self.done(Settling::of(&claim).park("no answer")).await;
        claim.effect.id
    }

    /// A new effect, attempted once and refused.
    pub(crate) async fn failed(&self, db: &TestDatabase, key: &str) -> EffectId {
        let claim = self.claimed(db, key).await;
        self.done(Settling::of(&claim).fail("card declined")).await;
        claim.effect.id
    }

    /// Settles; it must be written.
    pub(crate) async fn done(&self, settlement: aftercommit::store::Settlement) {
        assert_eq!(self.worker.settle(settlement).await, Settled::Done);
    }

    /// A new effect in `state`; *retrying* is certain here.
    pub(crate) async fn reach(&self, db: &TestDatabase, key: &str, state: State) -> EffectId {
        let downstream = &self.downstream;
        let id = match state {
            State::Waiting => panic!("nothing waits yet: needs and lanes come with their issue"),
            State::Scheduled => {
                let later = db.engine.after(db.engine.now(), HOUR);
                db.insert_with(downstream, key, &[("due_at", &later)]).await
            }
            State::Ready => db.insert(downstream, key).await,
            State::InFlight => self.claimed(db, key).await.effect.id,
            State::Retrying => {
                let claim = self.claimed(db, key).await;
                self.done(Settling::of(&claim).retry_not_applied(in_an_hour(db).await)).await;
                claim.effect.id
            }
            State::InDoubt => self.parked(db, key).await,
            State::Succeeded => {
                let claim = self.claimed(db, key).await;
                self.done(Settling::of(&claim).succeed()).await;
                claim.effect.id
            }
            State::Failed => self.failed(db, key).await,
            State::Cancelled => {
                let id = db.insert(downstream, key).await;
                let acted = db.store.act(id, &Verb::Cancel, &person(), None).await.expect("acting works");
                assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
                id
            }
            State::Expired => {
                let claim = self.claimed(db, key).await;
                self.done(Settling::of(&claim).unsent(Decision::Expire)).await;
                claim.effect.id
            }
        };
        assert_eq!(db.state(id).await, state, "the stage did not reach {state}");
        id
    }
}

/// A time that no test reaches.
pub(crate) async fn in_an_hour(db: &TestDatabase) -> Timestamp {
    db.now().await.plus(HOUR)
}
