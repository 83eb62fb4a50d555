//! What a visitor is shown of an effect: payloads, answers and headers to those who may see them. What nobody is shown was taken away
//! when it was read ([`crate::eyes`]); of an effect that an action gave back it is taken away here.

use aftercommit::store::Status;

use super::json::EffectJson;
use crate::{access::Visitor, redaction::Redaction, shared::Shared};

/// The eyes of one visitor.
pub(super) struct Shown<'a> {
    redaction: &'a Redaction,
    sees_content: bool,
}

impl<'a> Shown<'a> {
    /// To this visitor.
    pub(super) fn to(shared: &'a Shared, visitor: &Visitor) -> Self {
        Self { redaction: shared.redaction(), sees_content: visitor.sees_content() }
    }

    /// An effect as an action left it.
    pub(super) fn status(&self, effect: Status) -> EffectJson {
        let mut json = EffectJson::from(&self.redaction.effect(effect));
        self.effect(&mut json);
        json
    }

    /// Takes away what they are not shown of an effect.
    pub(super) fn effect(&self, effect: &mut EffectJson) {
        if !self.sees_content {
            effect.response = None;
            effect.target = None;
            effect.request = effect.request.take().map(|_hidden| None);
        }
        // Sentences of ours that quote others.
        for verb in effect.verbs.iter_mut().flatten() {
            self.words(&mut verb.consequence);
            self.words(&mut verb.refused);
        }
        self.words(&mut effect.what_follows);
    }

    fn words(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            *text = self.redaction.words(text).into_owned();
        }
    }
}
