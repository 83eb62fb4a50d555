//! People's commands, carried out by a dashboard.

use aftercommit::{
    clock::Timestamp,
    contract::Contract,
    decision::Resend,
    effect::EffectId,
    state::State,
    store::{
        Acted, AuditFilter, Audited, Content, DownstreamInfo, Filter, Intent, LoggedAttempt, Look, Page,
        PauseActed, RequestFilter, RequestInfo, Status, WorkerInfo,
    },
    verb::{Actor, Change, Refusal, Resolved, Verb},
};
use aftercommit_dashboard::api::json::{
    ActJson, AttemptsJson, AuditsJson, ConfirmedJson, DownstreamJson, DownstreamsJson, EffectJson,
    EffectsJson, EndpointJson, EndpointsJson, EnqueueJson, EnqueuedJson, ReasonJson, ReissueJson,
    RequestsJson, Resolution, ResolveJson, ResumeJson, SentJson, Time, WorkersJson,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::value::RawValue;

use super::{Refused, Remote};
use crate::cli::{
    Exit,
    people::{People, Sight, Wish, Written},
};

impl Remote {
    /// Writes an effect: each with whether it was written now.
    ///
    /// # Errors
    ///
    /// When it was refused, or the dashboard is away.
    pub(crate) async fn enqueue(&self, effect: &EnqueueJson) -> anyhow::Result<Vec<Written>> {
        let written: EnqueuedJson = self.post(&["effects"], effect).await?;
        let of = |mut effect: EffectJson| Written {
            inserted: effect.inserted == Some(true),
            target: effect.target.take(),
            effect: Status::from(effect),
        };
        Ok(written.effects.into_iter().map(of).collect())
    }

    async fn one(&self, id: EffectId, query: &[(&str, String)]) -> anyhow::Result<Option<EffectJson>> {
        let found = self.get(&["effects", &id.to_string()], query).await;
        found.map(Some).or_else(absent)
    }
}

/// What is not there is none.
fn absent<T>(problem: anyhow::Error) -> anyhow::Result<Option<T>> {
    match problem.downcast_ref::<Refused>() {
        Some(refused) if refused.exit == Exit::NotFound => Ok(None),
        Some(_) | None => Err(problem),
    }
}

#[async_trait::async_trait]
impl People for Remote {
    async fn effect(&self, id: EffectId) -> anyhow::Result<Option<Status>> {
        Ok(self.one(id, &[]).await?.map(Status::from))
    }

    async fn effects(&self, filter: &Filter) -> anyhow::Result<Page> {
        let page: EffectsJson = self.get(&["effects"], &query(filter)).await?;
        let effects = page.effects.into_iter().map(Status::from).collect();
        Ok(Page { effects, next: page.next, searched: page.searched })
    }

    async fn attempts(&self, id: EffectId) -> anyhow::Result<Vec<LoggedAttempt>> {
        let log: AttemptsJson = self.get(&["effects", &id.to_string(), "attempts"], &[]).await?;
        Ok(log.attempts.into_iter().map(LoggedAttempt::from).collect())
    }

    async fn contract(&self, _effect: &Status) -> anyhow::Result<Option<Contract>> {
        Ok(None)
    }

    async fn intent(&self, id: EffectId, look: Look) -> anyhow::Result<Sight> {
        let query = [("payload", (look == Look::Whole).to_string())];
        let Some(effect) = self.one(id, &query).await? else { return Ok(Sight::Seen(None)) };
        Ok(match effect.request.flatten() {
            Some(sent) => Sight::Seen(Some(Box::new(intent(*sent, look)?))),
            None => Sight::Hidden,
        })
    }

    async fn may_apply_twice(&self, effect: &Status) -> anyhow::Result<bool> {
        let told = self.one(effect.id, &[]).await?.and_then(|effect| effect.verbs).unwrap_or_default();
        Ok(told.iter().any(|verb| verb.verb == Verb::Resend.as_str() && verb.confirmation.is_some()))
    }

    async fn act(&self, id: EffectId, wish: &Wish<'_>) -> anyhow::Result<Acted> {
        let id = id.to_string();
        let post = |verb: &'static str| ["effects".to_owned(), id.clone(), verb.to_owned()];
        let (state, token) = (wish.seen.state, wish.seen.token);
        let reason = wish.actor.reason.clone();
        let confirmation = wish.confirmation.map(str::to_owned);
        let plain = ActJson { state, token, reason: reason.clone() };
        let found = |resolved: Resolved| match resolved {
            Resolved::Applied => Resolution::Applied,
            Resolved::NotApplied => Resolution::NotApplied,
        };
        let resolve = |found: Resolution, response: Option<Box<RawValue>>| ResolveJson {
            state,
            token,
            found,
            reason: reason.clone().unwrap_or_default(),
            response,
        };
        let answered = match wish.verb {
            Verb::Retry => self.act_by(&post("retry"), &plain).await,
            Verb::Cancel => self.act_by(&post("cancel"), &plain).await,
            Verb::Redact => self.act_by(&post("redact"), &plain).await,
            Verb::Resend => {
                let wish = ConfirmedJson { state, token, reason: reason.clone(), confirmation };
                self.act_by(&post("resend"), &wish).await
            }
            Verb::ResolveApplied { response } => {
                let response = response.clone().map(RawValue::from_string).transpose()?;
                self.act_by(&post("resolve"), &resolve(Resolution::Applied, response)).await
            }
            Verb::ResolveNotApplied => {
                self.act_by(&post("resolve"), &resolve(Resolution::NotApplied, None)).await
            }
            Verb::Reissue { resolve } => {
                let reason = reason.clone().unwrap_or_default();
                let wish = ReissueJson { state, token, reason, confirmation, resolve: resolve.map(found) };
                self.act_by(&post("reissue"), &wish).await
            }
        };
        match answered {
            Ok(effect) => {
                let now = Status::from(effect);
                Ok(Acted::Done(change(wish, &now), Box::new(now)))
            }
            Err(problem) => told(problem),
        }
    }

    async fn downstreams(&self) -> anyhow::Result<Vec<DownstreamInfo>> {
        let all: DownstreamsJson = self.get(&["downstreams"], &[]).await?;
        Ok(all.downstreams.into_iter().map(DownstreamInfo::from).collect())
    }

    async fn pause(&self, downstream: &str, actor: &Actor) -> anyhow::Result<PauseActed> {
        let reason = ReasonJson { reason: actor.reason.clone() };
        let answered = self.post::<DownstreamJson>(&["downstreams", downstream, "pause"], &reason).await;
        match answered.map(Some).or_else(absent)? {
            Some(_) => Ok(PauseActed::Done),
            None => Ok(PauseActed::NotFound),
        }
    }

    async fn resume(&self, downstream: &str, actor: &Actor) -> anyhow::Result<PauseActed> {
        let all = self.downstreams().await?;
        let known = all.into_iter().find(|info| info.name == downstream && info.kind.is_some());
        let Some(info) = known else { return Ok(PauseActed::NotFound) };
        let Some(paused) = info.paused else { return Ok(PauseActed::AsItWas(None)) };
        let wish = ResumeJson { paused_at: Time(paused.at), reason: actor.reason.clone() };
        self.post::<DownstreamJson>(&["downstreams", downstream, "resume"], &wish).await?;
        Ok(PauseActed::Done)
    }

    async fn endpoints(&self, downstream: &str) -> anyhow::Result<Vec<EndpointJson>> {
        let all: EndpointsJson = self.get(&["downstreams", downstream, "endpoints"], &[]).await?;
        Ok(all.endpoints)
    }

    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> anyhow::Result<bool> {
        let verb = if disable.is_some() { "disable" } else { "enable" };
        let reason = ReasonJson { reason: disable.map(str::to_owned).or_else(|| actor.reason.clone()) };
        let path = ["downstreams", downstream, "endpoints", name, verb];
        self.post::<EndpointJson>(&path, &reason).await?;
        Ok(true)
    }

    async fn workers(&self) -> anyhow::Result<Vec<WorkerInfo>> {
        let all: WorkersJson = self.get(&["workers"], &[]).await?;
        Ok(all.workers.into_iter().map(WorkerInfo::from).collect())
    }

    async fn requests(&self, filter: &RequestFilter) -> anyhow::Result<Vec<RequestInfo>> {
        let mut query = vec![("limit", filter.limit.to_string())];
        query.extend(filter.scope.clone().map(|scope| ("scope", scope)));
        query.extend(filter.key.clone().map(|key| ("key", key)));
        let state = filter.expired.map(|expired| if expired { "expired" } else { "kept" });
        query.extend(state.map(|state| ("state", state.to_owned())));
        query.extend(filter.before.map(|place| ("before", place.to_string())));
        let page: RequestsJson = self.get(&["requests"], &query).await?;
        Ok(page.requests.into_iter().map(RequestInfo::from).collect())
    }

    async fn audit(&self, filter: &AuditFilter) -> anyhow::Result<Vec<Audited>> {
        let mut query = vec![("limit", filter.limit.to_string())];
        query.extend(filter.effect.map(|id| ("effect", id.to_string())));
        query.extend(filter.downstream.clone().map(|name| ("downstream", name)));
        query.extend(filter.who.clone().map(|who| ("who", who)));
        query.extend(filter.before.map(|before| ("before", before.to_string())));
        let page: AuditsJson = self.get(&["audit"], &query).await?;
        Ok(page.audit.into_iter().map(Audited::from).collect())
    }

    async fn now(&self) -> anyhow::Result<Timestamp> {
        Ok(self.about().await?.now.0)
    }
}

impl Remote {
    async fn act_by(
        &self,
        path: &[String; 3],
        body: &(impl serde::Serialize + Sync),
    ) -> anyhow::Result<EffectJson> {
        self.post(&path.each_ref().map(String::as_str), body).await
    }
}

/// A refusal that the commands know how to handle; all else is told in the dashboard's words.
fn told(problem: anyhow::Error) -> anyhow::Result<Acted> {
    let Some(refused) = problem.downcast_ref::<Refused>() else { return Err(problem) };
    if refused.exit == Exit::NotFound {
        return Ok(Acted::NotFound);
    }
    match (refused.name(), refused.problem.state, refused.problem.token) {
        ("stale", Some(state), Some(token)) => Ok(Acted::Refused(Refusal::Stale { state, token })),
        _ => Err(problem),
    }
}

/// What a verb that was carried out did, by what the effect was and is.
fn change(wish: &Wish<'_>, now: &Status) -> Change {
    match wish.verb {
        Verb::Retry if wish.seen.state == State::Failed => Change::NewHistory,
        Verb::Retry => Change::DueNow,
        Verb::Resend => {
            let resend = if wish.confirmation.is_some() { Resend::Confirmed } else { Resend::Unconfirmed };
            Change::OneResend { resend, sweep_at: None }
        }
        Verb::Cancel => match (now.state, now.due_at) {
            (State::InFlight, _) => Change::RequestCancel,
            (State::InDoubt, Some(at)) => Change::Probe(at, now.last_error.clone().unwrap_or_default()),
            (State::InDoubt, None) => Change::Park(now.last_error.clone().unwrap_or_default()),
            (state, _) => Change::End(state),
        },
        Verb::ResolveApplied { .. } | Verb::ResolveNotApplied => Change::End(now.state),
        Verb::Redact => Change::Redact,
        Verb::Reissue { resolve } => Change::Reissue(resolve.map(Resolved::state)),
    }
}

/// What an effect sends, as far as it was told.
fn intent(sent: SentJson, look: Look) -> anyhow::Result<Intent> {
    let content = match (sent.payload, sent.body_base64) {
        _ if sent.dropped => Content::Dropped,
        (Some(text), _) => Content::Json(Some(text)),
        (None, Some(body)) => Content::Bytes(Some(STANDARD.decode(body)?)),
        (None, None) if sent.bytes.is_none() => Content::None,
        (None, None) if sent.content_type.is_some() => Content::Bytes(None),
        (None, None) => Content::Json(None),
    };
    let headers = sent.headers.filter(|_| look == Look::Whole);
    Ok(Intent {
        target: sent.target,
        content_type: sent.content_type,
        headers: headers.map(|headers| headers.get().to_owned()),
        ordering_key: sent.ordering_key,
        trace_context: sent.trace_context,
        enqueued_by: sent.enqueued_by,
        request_id: sent.request_id,
        expires_at: sent.expires_at.map(|time| time.0),
        bytes: sent.bytes,
        content,
    })
}

/// A filter as the API is asked.
fn query(filter: &Filter) -> Vec<(&'static str, String)> {
    let mut query = vec![("limit", filter.limit.to_string())];
    let words: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let ids =
        filter.ids.as_ref().map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    let texts = [
        ("state", (!words.is_empty()).then(|| words.join(","))),
        ("downstream", filter.downstream.clone()),
        ("operation", filter.operation.clone()),
        ("key", filter.key.clone()),
        ("metadata", filter.metadata.clone()),
        ("error", filter.error.clone()),
        ("created_before", filter.created_before.map(Timestamp::rfc3339)),
        ("created_after", filter.created_after.map(Timestamp::rfc3339)),
        ("id", ids),
        ("before", filter.before.map(|id| id.to_string())),
    ];
    query.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?))));
    query
}
