//! What is read from the database to be shown: [`Eyes`]. Pages and the API read rows through them and not from the database itself, so
//! that none of them has to remember what nobody is shown. What a viewer is not shown besides is theirs to leave out.

use std::{collections::HashMap, sync::Arc};

use aftercommit::{
    clock::Timestamp,
    downstream::endpoint::Endpoint,
    effect::EffectId,
    error::StoreError,
    state::State,
    store::{
        AuditFilter, Audited, BulkInfo, Causes, Database, DownstreamInfo, Filter, Intent, LoggedAttempt,
        Look, PAGE_MAX, Page, Status, identity::Hold,
    },
};

use crate::redaction::Redaction;

/// The eyes of whoever looks.
pub(crate) struct Eyes<'a> {
    database: &'a Arc<dyn Database>,
    redaction: &'a Redaction,
}

impl<'a> Eyes<'a> {
    pub(crate) fn new(database: &'a Arc<dyn Database>, redaction: &'a Redaction) -> Self {
        Self { database, redaction }
    }

    /// One effect.
    pub(crate) async fn effect(&self, id: EffectId) -> Result<Option<Status>, StoreError> {
        Ok(self.database.effect(id).await?.map(|effect| self.redaction.effect(effect)))
    }

    /// A page of effects, newest first: of those that can be found by what is shown of them.
    pub(crate) async fn effects(&self, filter: &Filter) -> Result<Page, StoreError> {
        let page = self.database.effects(filter).await?;
        let (found, oldest) = (page.effects.len(), page.effects.last().map(|effect| effect.id));
        let shown = self.seen(page.effects, filter);
        let was_full = page.next.is_some() && page.next == oldest;
        if shown.len() == found || !was_full {
            return Ok(Page { effects: shown, ..page });
        }
        self.further(filter, (shown, page.next)).await
    }

    /// A page that was filled by what nobody is shown: read on as if that had not been there. Where the page ends tells nothing either:
    /// it looks no further than a search that finds nothing.
    async fn further(
        &self,
        filter: &Filter,
        (mut shown, mut next): (Vec<Status>, Option<EffectId>),
    ) -> Result<Page, StoreError> {
        let nothing = Filter { error: Some(uuid::Uuid::new_v4().to_string()), ..filter.clone() };
        let end = self.database.effects(&nothing).await?;
        let limit = usize::try_from(filter.limit.min(PAGE_MAX)).unwrap_or(usize::MAX);
        let within = |id: EffectId| end.next.is_none_or(|end| id >= end);
        while let Some(before) = next.filter(|before| within(*before) && shown.len() <= limit) {
            let more = Filter { before: Some(before), limit: PAGE_MAX, ..filter.clone() };
            let page = self.database.effects(&more).await?;
            shown.extend(self.seen(page.effects, filter).into_iter().filter(|effect| within(effect.id)));
            // Never in a circle, whatever a page says comes next.
            next = page.next.filter(|next| *next < before);
        }
        let is_cut = shown.len() > limit;
        shown.truncate(limit);
        let next = if is_cut { shown.last().map(|effect| effect.id) } else { end.next };
        Ok(Page { effects: shown, next, searched: end.searched })
    }

    fn seen(&self, effects: Vec<Status>, filter: &Filter) -> Vec<Status> {
        let found = effects.into_iter().filter(|effect| self.redaction.is_found(effect, filter));
        found.map(|effect| self.redaction.effect(effect)).collect()
    }

    /// The attempts of an effect, oldest first.
    pub(crate) async fn attempts(&self, id: EffectId) -> Result<Vec<LoggedAttempt>, StoreError> {
        let attempts = self.database.attempts(id).await?;
        Ok(attempts.into_iter().map(|attempt| self.redaction.attempt(attempt)).collect())
    }

    /// What an effect sends; nothing where the dashboard's login at the database may only view.
    pub(crate) async fn intent(&self, id: EffectId, look: Look) -> Result<Option<Intent>, StoreError> {
        match self.database.intent(id, look).await {
            Ok(intent) => Ok(intent.map(|intent| self.redaction.intent(intent))),
            Err(error) if error.is_forbidden() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What each of these effects sends; nothing where the dashboard's login at the database may only view.
    pub(crate) async fn intents(
        &self,
        ids: &[EffectId],
        look: Look,
    ) -> Result<HashMap<EffectId, Intent>, StoreError> {
        match self.database.intents(ids, look).await {
            Ok(found) => {
                Ok(found.into_iter().map(|(id, intent)| (id, self.redaction.intent(intent))).collect())
            }
            Err(error) if error.is_forbidden() => Ok(HashMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Why the newest effects failed, or are in doubt.
    pub(crate) async fn causes(&self, state: State, downstream: Option<&str>) -> Result<Causes, StoreError> {
        let causes = self.database.causes(state, downstream).await?;
        let rows = causes.rows.into_iter().map(|row| self.redaction.cause(row)).collect();
        Ok(Causes { rows, ..causes })
    }

    /// The downstreams.
    pub(crate) async fn downstreams(&self) -> Result<Vec<DownstreamInfo>, StoreError> {
        let all = self.database.downstreams().await?;
        Ok(all.into_iter().map(|info| self.redaction.downstream(info)).collect())
    }

    /// The endpoints of a downstream that has many, and the database's clock.
    pub(crate) async fn endpoints(&self, downstream: &str) -> Result<(Timestamp, Vec<Endpoint>), StoreError> {
        let (now, rows) = self.database.endpoints(downstream).await?;
        Ok((now, rows.into_iter().map(|row| self.redaction.endpoint(row)).collect()))
    }

    /// Who did what, newest first.
    pub(crate) async fn audit(&self, filter: &AuditFilter) -> Result<Vec<Audited>, StoreError> {
        let rows = self.database.audit(filter).await?;
        Ok(rows.into_iter().map(|row| self.redaction.audited(row)).collect())
    }

    /// Bulks, newest first.
    pub(crate) async fn bulks(&self, limit: u32) -> Result<Vec<BulkInfo>, StoreError> {
        let bulks = self.database.bulks(limit).await?;
        Ok(bulks.into_iter().map(|bulk| self.redaction.bulk(bulk)).collect())
    }

    /// One bulk.
    pub(crate) async fn bulk(&self, id: i64) -> Result<Option<BulkInfo>, StoreError> {
        Ok(self.database.bulk(id).await?.map(|bulk| self.redaction.bulk(bulk)))
    }

    /// The HOLD, if there is one.
    pub(crate) async fn hold(&self) -> Result<Option<Hold>, StoreError> {
        Ok(self.database.hold().await?.map(|hold| self.redaction.hold(hold)))
    }
}
