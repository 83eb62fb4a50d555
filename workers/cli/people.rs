//! Whom people's commands ask: a database, or a dashboard that stands before one. The commands are the same.

use std::sync::Arc;

use aftercommit::{
    clock::Timestamp,
    contract::Contract,
    effect::EffectId,
    store::{
        Acted, AuditFilter, Audited, Database, DownstreamInfo, Filter, Intent, LoggedAttempt, Look, Page,
        PauseActed, RequestFilter, RequestInfo, Status, WorkerInfo,
    },
    verb::{Actor, Seen, Verb, may_apply_twice},
};
use aftercommit_dashboard::api::json::EndpointJson;

use super::endpoints;

/// What people's commands need.
#[async_trait::async_trait]
pub(crate) trait People: Send + Sync {
    /// One effect.
    async fn effect(&self, id: EffectId) -> anyhow::Result<Option<Status>>;
    /// A page of effects.
    async fn effects(&self, filter: &Filter) -> anyhow::Result<Page>;
    /// The attempts of an effect.
    async fn attempts(&self, id: EffectId) -> anyhow::Result<Vec<LoggedAttempt>>;
    /// What its downstream promises today, where that is known: a dashboard tells what it means, and not the contract itself.
    async fn contract(&self, effect: &Status) -> anyhow::Result<Option<Contract>>;
    /// What an effect sends; `Err(Hidden)` for whoever may not read it.
    async fn intent(&self, id: EffectId, look: Look) -> anyhow::Result<Sight>;
    /// Whether a resend of this effect may be applied a second time, now.
    async fn may_apply_twice(&self, effect: &Status) -> anyhow::Result<bool>;
    /// Carries out a verb on an effect that is as it was seen.
    async fn act(&self, id: EffectId, wish: &Wish<'_>) -> anyhow::Result<Acted>;
    /// The downstreams.
    async fn downstreams(&self) -> anyhow::Result<Vec<DownstreamInfo>>;
    /// Pauses a downstream.
    async fn pause(&self, downstream: &str, actor: &Actor) -> anyhow::Result<PauseActed>;
    /// Ends a pause.
    async fn resume(&self, downstream: &str, actor: &Actor) -> anyhow::Result<PauseActed>;
    /// The endpoints of a downstream, as far as there are rows of them.
    async fn endpoints(&self, downstream: &str) -> anyhow::Result<Vec<EndpointJson>>;
    /// Disables an endpoint (`disable` says why), or enables it; `false` when it was so already.
    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> anyhow::Result<bool>;
    /// The workers.
    async fn workers(&self) -> anyhow::Result<Vec<WorkerInfo>>;
    /// Guarded requests.
    async fn requests(&self, filter: &RequestFilter) -> anyhow::Result<Vec<RequestInfo>>;
    /// Who did what.
    async fn audit(&self, filter: &AuditFilter) -> anyhow::Result<Vec<Audited>>;
    /// The database's clock.
    async fn now(&self) -> anyhow::Result<Timestamp>;
}

/// What is to be done to an effect.
#[derive(Clone, Debug)]
pub(crate) struct Wish<'a> {
    /// The verb.
    pub(crate) verb: &'a Verb,
    /// Who, and why. A dashboard knows by itself who asks.
    pub(crate) actor: &'a Actor,
    /// What it was decided on.
    pub(crate) seen: Seen,
    /// What was typed to confirm it, where something was.
    pub(crate) confirmation: Option<&'a str>,
}

/// An effect that was enqueued.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// As it stands.
    pub(crate) effect: Status,
    /// Whether it was written now; else it existed already.
    pub(crate) inserted: bool,
    /// Whose effect it is, where it is one of several.
    pub(crate) target: Option<String>,
}

/// What one may see of what an effect sends.
#[derive(Clone, Debug)]
pub(crate) enum Sight {
    /// This; nothing when there is no such effect.
    Seen(Option<Box<Intent>>),
    /// Nothing: who asks may only view.
    Hidden,
}

/// A database.
pub(crate) struct Here(pub(crate) Arc<dyn Database>);

#[async_trait::async_trait]
impl People for Here {
    async fn effect(&self, id: EffectId) -> anyhow::Result<Option<Status>> {
        Ok(self.0.effect(id).await?)
    }

    async fn effects(&self, filter: &Filter) -> anyhow::Result<Page> {
        Ok(self.0.effects(filter).await?)
    }

    async fn attempts(&self, id: EffectId) -> anyhow::Result<Vec<LoggedAttempt>> {
        Ok(self.0.attempts(id).await?)
    }

    async fn contract(&self, effect: &Status) -> anyhow::Result<Option<Contract>> {
        match self.0.terms(&effect.downstream, effect.operation.as_deref()).await {
            Ok(terms) => Ok(terms.map(|terms| terms.contract)),
            // Whoever may only view can be told without it.
            Err(problem) if problem.is_forbidden() => Ok(None),
            Err(problem) => Err(problem.into()),
        }
    }

    async fn intent(&self, id: EffectId, look: Look) -> anyhow::Result<Sight> {
        match self.0.intent(id, look).await {
            Ok(intent) => Ok(Sight::Seen(intent.map(Box::new))),
            Err(problem) if problem.is_forbidden() => Ok(Sight::Hidden),
            Err(problem) => Err(problem.into()),
        }
    }

    async fn may_apply_twice(&self, effect: &Status) -> anyhow::Result<bool> {
        let terms = self.0.terms(&effect.downstream, effect.operation.as_deref()).await?;
        let contract = terms.map(|terms| terms.contract);
        Ok(may_apply_twice(effect, contract.as_ref(), self.0.now().await?))
    }

    async fn act(&self, id: EffectId, wish: &Wish<'_>) -> anyhow::Result<Acted> {
        Ok(self.0.act(id, wish.verb, wish.actor, Some(wish.seen)).await?)
    }

    async fn downstreams(&self) -> anyhow::Result<Vec<DownstreamInfo>> {
        Ok(self.0.downstreams().await?)
    }

    async fn pause(&self, downstream: &str, actor: &Actor) -> anyhow::Result<PauseActed> {
        Ok(self.0.pause(downstream, actor).await?)
    }

    async fn resume(&self, downstream: &str, actor: &Actor) -> anyhow::Result<PauseActed> {
        Ok(self.0.resume(downstream, actor, None).await?)
    }

    async fn endpoints(&self, downstream: &str) -> anyhow::Result<Vec<EndpointJson>> {
        let (_now, rows) = endpoints::rows(self.0.as_ref(), downstream).await?;
        Ok(rows.iter().map(|row| EndpointJson::of_row(downstream, row)).collect())
    }

    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> anyhow::Result<bool> {
        Ok(self.0.switch_endpoint(downstream, name, disable, actor).await?)
    }

    async fn workers(&self) -> anyhow::Result<Vec<WorkerInfo>> {
        Ok(self.0.workers().await?)
    }

    async fn requests(&self, filter: &RequestFilter) -> anyhow::Result<Vec<RequestInfo>> {
        Ok(self.0.requests(filter).await?)
    }

    async fn audit(&self, filter: &AuditFilter) -> anyhow::Result<Vec<Audited>> {
        Ok(self.0.audit(filter).await?)
    }

    async fn now(&self) -> anyhow::Result<Timestamp> {
        Ok(self.0.now().await?)
    }
}
