//! A shop with a payment API that honours keys and a mail server that cannot, and effects of it in every state.

use std::time::Duration;

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    outcome::{About, Finding, Outcome, Phase, Response},
    state::State,
    store::{Claim, NewBulk, RegisteredDownstream, Report, Settlement, Sign},
    verb::{Actor, Seen, Verb},
};
use serde_json::{Value, json};

use crate::support::{Settling, TestDatabase, Worker, key_terms, none_terms, registered};

/// The shop, and the worker that carries its effects out.
pub(super) struct Shop<'d> {
    db: &'d TestDatabase,
    worker: Worker,
}

impl<'d> Shop<'d> {
    /// Opens it.
    pub(super) async fn open(db: &'d TestDatabase) -> Self {
        let charge = (Some("charge".to_owned()), key_terms(), [8; 32]);
        let mut payments = registered("payments", key_terms());
        payments.operations.push(charge);
        payments.origin = Some("https://api.pay.test".into());
        let mail = RegisteredDownstream { kind: "smtp", ..registered("mail", none_terms(OnUnknown::Hold)) };
        let worker = Worker::start(&db.store, "shop-1-4711", vec![payments, mail]).await;
        Self { db, worker }
    }

    /// A charge that is due.
    pub(super) async fn due(&self, key: &str, order: &str) -> EffectId {
        let payload = format!(
            "'{{\"amount\":1500,\"currency\":\"jpy\",\"source\":\"tok_visa\",\"big\":9007199254740993,\"order\":\"{order}\"}}'"
        );
        let metadata = format!("'{{\"order\":\"{order}\",\"customer\":4711}}'");
        let columns =
            [("operation", "'charge'"), ("payload", payload.as_str()), ("metadata", metadata.as_str())];
        self.db.insert_with("payments", key, &columns).await
    }

    async fn claimed(&self, key: &str, order: &str) -> Claim {
        let id = self.due(key, order).await;
        let claim = self.worker.claim_one("payments").await;
        assert_eq!(claim.effect.id, id, "another charge was due");
        claim
    }

    async fn settle(&self, claim: &Claim, settlement: Settlement) -> EffectId {
        self.worker.settle(settlement).await;
        claim.effect.id
    }

    /// A charge that timed out and was parked.
    pub(super) async fn doubtful(&self, key: &str, order: &str) -> EffectId {
        let claim = self.claimed(key, order).await;
        let id = self.settle(&claim, Settling::of(&claim).park("no answer within 20 s")).await;
        self.waited_for(id).await;
        id
    }

    /// A mail that was taken by a server that then fell silent.
    pub(super) async fn doubtful_mail(&self, key: &str) -> EffectId {
        let payload = ("payload", "'{\"to\":\"ann@shop.test\",\"subject\":\"Welcome\",\"text\":\"hello\"}'");
        self.db.insert_with("mail", key, &[payload, ("metadata", "'{\"customer\":4712}'")]).await;
        let claim = self.worker.claim_one("mail").await;
        let why = "no answer after the final dot within 5 s";
        let id = self.settle(&claim, Settling::of(&claim).park(why)).await;
        self.waited_for(id).await;
        id
    }

    /// A charge in doubt whose last request may still be travelling.
    async fn travelling(&self, key: &str, order: &str) -> EffectId {
        let claim = self.claimed(key, order).await;
        let until = self.db.now().await.plus(Duration::from_secs(600));
        let parked = Settling::of(&claim).park("no answer within 20 s");
        self.settle(&claim, Settlement { quiet_at: Some(until), ..parked }).await
    }

    /// Its last request cannot be travelling any more.
    async fn waited_for(&self, id: EffectId) {
        let engine = self.db.engine;
        let past = engine.before(engine.now(), Duration::from_secs(60));
        let changed = self
            .db
            .sql
            .execute(&format!("UPDATE aftercommit.queue SET quiet_at = {past} WHERE id = {id}"))
            .await;
        assert_eq!(changed, 1, "effect {id} has no row in the queue");
    }

    /// A charge that was refused.
    pub(super) async fn failed(&self, key: &str, order: &str) -> EffectId {
        let claim = self.claimed(key, order).await;
        self.settle(&claim, declined(&claim)).await
    }

    /// So many charges that were refused, oldest first.
    pub(super) async fn fail_many(&self, n: usize) -> Vec<EffectId> {
        for number in 0..n {
            self.due(&format!("order-A-{number}/charge"), &format!("A-{number}")).await;
        }
        let mut failed = Vec::with_capacity(n);
        while failed.len() < n {
            let claims = self.worker.claim("payments", 200).await;
            assert!(!claims.is_empty(), "{} of {n} charges were due", failed.len());
            let batch: Vec<Settlement> = claims.iter().map(declined).collect();
            self.worker.store.settle(&batch, &[]).await.expect("settling works");
            failed.extend(claims.iter().map(|claim| claim.effect.id));
        }
        failed
    }

    /// A few of each.
    pub(super) async fn some(&self) {
        self.failed("order-A-1/charge", "A-1").await;
        self.doubtful("order-A-2/charge", "A-2").await;
        self.doubtful_mail("welcome-7").await;
        for n in 3..9 {
            self.due(&format!("order-A-{n}/charge"), &format!("A-{n}")).await;
        }
    }

    /// Something of everything that the pages show; the numbers of what is looked at.
    pub(super) async fn everything(&self) -> Value {
        let store = &self.db.store;
        let failed = self.failed("order-B-1/charge", "B-1").await;
        let doubt = self
            .doubtful(
                "order-B-2/charge-with-a-key-that-is-as-long-as-keys-of-people-who-like-long-keys-become",
                "B-2",
            )
            .await;
        let mail = self.doubtful_mail("welcome-9").await;
        let travelling = self.travelling("order-B-18/charge", "B-18").await;
        let claim = self.claimed("order-B-3/charge", "B-3").await;
        let succeeded = self.settle(&claim, succeeded(&claim)).await;
        let claim = self.claimed("order-B-4/charge", "B-4").await;
        let later = self.db.now().await.plus(Duration::from_secs(90));
        let retrying = self.settle(&claim, Settling::of(&claim).retry_unknown(later)).await;
        let bulk = self.bulk(&[failed]).await;
        self.claimed("order-B-5/charge", "B-5").await;
        for n in 6..16 {
            self.due(&format!("order-B-{n}/charge"), &format!("B-{n}")).await;
        }
        let scheduled = self.db.engine.after(self.db.engine.now(), Duration::from_secs(86_400));
        self.db
            .insert_with(
                "payments",
                "order-B-20/charge",
                &[("due_at", &scheduled), ("operation", "'charge'")],
            )
            .await;
        self.db.insert("a-downstream-that-nobody-configured", "typo-1").await;
        let ann = Actor {
            who: "ann@shop.test".to_owned(),
            reason: Some("the relay is being moved, until ten".to_owned()),
            ..Actor::default()
        };
        store.pause("mail", &ann).await.expect("pausing works");
        let cancelled = self.due("order-B-17/charge", "B-17").await;
        store.act(cancelled, &Verb::Cancel, &ann, None).await.expect("cancelling works");
        let report = Report {
            origin: "https://api.pay.test".into(),
            sign: Sign::Nothing,
            pause: Some(Duration::from_secs(300)),
            reason: "429 with Retry-After 300".to_owned(),
        };
        store.report(&[report]).await.expect("reporting works");
        json!({
            "failed": failed.get(), "doubt": doubt.get(), "mail": mail.get(), "succeeded": succeeded.get(), "retrying": retrying.get(), "bulk": bulk,
            "travelling": travelling.get(),
        })
    }

    async fn bulk(&self, effects: &[EffectId]) -> i64 {
        let reason = Some("the bank was away".to_owned());
        let actor = Actor {
            who: "ann@shop.test".to_owned(),
            reason,
            from: Some("10.0.0.7".to_owned()),
            ..Actor::default()
        };
        let bulk = NewBulk {
            verb: "retry".to_owned(),
            what: "state failed, downstream payments".to_owned(),
            rate: 25,
            actor,
        };
        let items: Vec<_> =
            effects.iter().map(|id| (*id, Seen { state: State::Succeeded, token: 1 })).collect();
        self.db.store.start_bulk(&bulk, &items).await.expect("a bulk starts")
    }
}

fn declined(claim: &Claim) -> Settlement {
    let words = format!("402: card card_{}x declined", claim.effect.id);
    let outcome = Outcome {
        response: Some(Response {
            status: Some(402),
            body: br#"{"error":{"code":"card_declined"}}"#.to_vec(),
            truncated: false,
        }),
        ..Outcome::new(Finding::Rejected(About::FirstRequest), Phase::Done, words.clone())
    };
    Settling::of(claim).decided(aftercommit::decision::Decision::Fail(words), &outcome)
}

fn succeeded(claim: &Claim) -> Settlement {
    let body = br#"{"id":"ch_19","object":"charge","amount":1500,"currency":"jpy","status":"succeeded","captured":true,"livemode":false,"balance":12345678901234567890123}"#;
    let outcome = Outcome {
        response: Some(Response { status: Some(200), body: body.to_vec(), truncated: false }),
        ..Outcome::new(Finding::Applied, Phase::Done, "")
    };
    Settling::of(claim).decided(aftercommit::decision::Decision::Succeed, &outcome)
}
