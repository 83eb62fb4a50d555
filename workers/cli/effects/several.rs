//! What became of several effects that were given by number, as one exit code.

use aftercommit::{effect::EffectId, visible::clean_lines};

use crate::cli::{
    Exit,
    exit::{exit_of, sentence},
    talk,
};

/// What became of several effects.
#[derive(Default)]
pub(super) struct Tally {
    done: usize,
    problems: Vec<anyhow::Error>,
}

impl Tally {
    /// Counts one, also where something is missing for it alone (a reason, a confirmation); a database that does not answer ends
    /// everything.
    pub(super) fn count(&mut self, id: EffectId, result: anyhow::Result<()>) -> anyhow::Result<()> {
        match result {
            Ok(()) => self.done += 1,
            Err(problem) => match exit_of(&problem) {
                Exit::NotFound | Exit::Forbidden => self.problems.push(problem),
                Exit::Usage => self.problems.push(problem.context(format!("effect {id}"))),
                Exit::Ok | Exit::Failure | Exit::Partly | Exit::Unreachable => {
                    return Err(problem.context(format!("effect {id}")));
                }
            },
        }
        Ok(())
    }

    /// The exit code, with what went wrong told.
    pub(super) fn exit(mut self) -> anyhow::Result<Exit> {
        match self.problems.len() {
            0 => Ok(Exit::Ok),
            1 if self.done == 0 => Err(self.problems.remove(0)),
            failed => {
                for problem in &self.problems {
                    talk!("aftercommit: {}", clean_lines(&sentence(problem)));
                }
                talk!("{} of {} done.", self.done, self.done + failed);
                if self.done > 0 {
                    return Ok(Exit::Partly);
                }
                let all = |exit: Exit| self.problems.iter().all(|problem| exit_of(problem) == exit);
                Ok([Exit::NotFound, Exit::Usage]
                    .into_iter()
                    .find(|exit| all(*exit))
                    .unwrap_or(Exit::Forbidden))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fail;

    fn tally(results: Vec<anyhow::Result<()>>) -> anyhow::Result<Exit> {
        let mut tally = Tally::default();
        for (id, result) in results.into_iter().enumerate() {
            tally.count(EffectId::new(i64::try_from(id).unwrap()), result)?;
        }
        tally.exit()
    }

    #[test]
    fn several_effects_end_in_one_exit_code() {
        let refused = || Err(fail(Exit::Forbidden, "no"));
        let absent = || Err(fail(Exit::NotFound, "gone"));
        assert_eq!(tally(vec![Ok(()), Ok(())]).unwrap(), Exit::Ok);
        assert_eq!(tally(vec![Ok(()), refused()]).unwrap(), Exit::Partly);
        assert_eq!(tally(vec![refused(), refused()]).unwrap(), Exit::Forbidden);
        assert_eq!(tally(vec![absent(), absent()]).unwrap(), Exit::NotFound);
        assert_eq!(tally(vec![absent(), refused()]).unwrap(), Exit::Forbidden);
        assert_eq!(exit_of(&tally(vec![refused()]).unwrap_err()), Exit::Forbidden);
        let reasonless = || Err(fail(Exit::Usage, "resend needs a reason"));
        assert_eq!(
            tally(vec![reasonless(), Ok(())]).unwrap(),
            Exit::Partly,
            "the others are done all the same"
        );
        assert_eq!(tally(vec![reasonless(), reasonless()]).unwrap(), Exit::Usage);
        assert_eq!(tally(vec![reasonless(), absent()]).unwrap(), Exit::Forbidden);
        assert_eq!(
            exit_of(&tally(vec![Err(fail(Exit::Unreachable, "gone"))]).unwrap_err()),
            Exit::Unreachable
        );
    }
}
