//! What follows for an effect, as this command line says it: the ways out are commands that can be typed as they stand.

use aftercommit::{
    follow::{Known, Part, Way, text, what_follows},
    visible::clean,
};

use crate::cli::{Context, quoted};

/// What follows, and the commands that change it.
pub(super) fn words(known: &Known<'_>, context: &Context) -> String {
    said(&what_follows(known), &context.invocation())
}

fn said(parts: &[Part], program: &str) -> String {
    text(parts, |way| format!("`{program} {}`", command(way)), |way| line(program, &command(way)))
}

fn command(way: &Way) -> String {
    match way {
        Way::Work => "work".to_owned(),
        Way::Downstreams => "downstreams list".to_owned(),
        Way::Resume(name) => format!("downstreams resume {}", clean(&quoted(name))),
        Way::Audit(id) => format!("audit --effect {id}"),
        Way::Retry(id) => format!("effects retry {id}"),
        Way::Resend(id) => format!("effects resend {id} --reason 'why twice does no harm'"),
        Way::ResolveApplied(id) => format!("effects resolve {id} --as applied --reason 'seen there'"),
        Way::ResolveNotApplied(id) => format!("effects resolve {id} --as not-applied --reason 'not there'"),
        Way::ReissueNotApplied(id) => {
            format!("effects reissue {id} --as not-applied --reason 'not there, and still wanted'")
        }
        Way::Reissue(id) => format!("effects reissue {id} --reason 'why it is wanted again'"),
    }
}

/// A command on a line of its own, broken where a shell lets it be when it is long.
fn line(program: &str, words: &str) -> String {
    const ROOM: usize = 74;
    if program.chars().count() + 1 + words.chars().count() <= ROOM {
        format!("  {program} {words}")
    } else {
        format!("  {program} \\\n    {words}")
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::effect::EffectId;

    use super::*;

    #[test]
    fn offers_stand_on_lines_of_their_own_and_names_in_their_sentence() {
        let id = EffectId::new(17);
        let parts = [
            Part::Says("Once the cause is removed:".to_owned()),
            Part::Offers(Way::Retry(id)),
            Part::Says("else look at ".to_owned()),
            Part::Names(Way::Downstreams),
            Part::Says(".".to_owned()),
        ];
        let text = said(&parts, "aftercommit --database sqlite:x.db");
        let wanted = "Once the cause is removed:\n  aftercommit --database sqlite:x.db effects retry 17\n\
                      else look at `aftercommit --database sqlite:x.db downstreams list`.";
        assert_eq!(text, wanted);
        let way = command(&Way::ReissueNotApplied(id));
        assert!(
            way.starts_with("effects reissue 17 --as not-applied --reason "),
            "it can be typed as it stands: {way}"
        );
        let long = said(&[Part::Offers(Way::Resend(id))], "aftercommit --database sqlite:x.db");
        assert!(long.starts_with("  aftercommit --database sqlite:x.db \\\n    effects resend"), "{long}");
    }
}
