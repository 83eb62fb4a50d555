//! What was answered in the place of what was asked for: a dashboard's refusal, told in its words, or somebody else's answer. An address
//! where no dashboard answers is a mistake of whoever gave it, and says nothing about any effect.

use aftercommit_dashboard::api::json::ProblemJson;
use reqwest::{Method, StatusCode};
use url::Url;

use crate::cli::{Exit, fail};

/// How the type of every problem begins that a dashboard tells.
const OURS: &str = "urn:aftercommit:problem:";
/// What a dashboard says of paths that it does not have: then it stands elsewhere, or is of another version.
const NO_SUCH_PATH: [&str; 2] = ["no-such-page", "method-not-allowed"];

/// What was asked, and of whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// The dashboard's address, as it may be shown.
    pub(super) server: &'a str,
    /// How.
    pub(super) method: &'a Method,
    /// What.
    pub(super) url: &'a Url,
    /// Whether a token was sent with it.
    pub(super) has_token: bool,
}

impl Asked<'_> {
    /// The error for an answer that is no success.
    pub(super) fn refused(self, status: StatusCode, bytes: &[u8]) -> anyhow::Error {
        match serde_json::from_slice::<ProblemJson>(bytes) {
            Ok(problem) if is_told_by_a_dashboard(&problem) => {
                Refused::of(status, problem, self.has_token).into()
            }
            Ok(_) | Err(_) => self.strange(status),
        }
    }

    /// The error for a success that is not what a dashboard of this version answers.
    pub(super) fn misread(self, status: StatusCode, problem: &serde_json::Error) -> anyhow::Error {
        if self.is_the_first() {
            return self.strange(status);
        }
        self.of_another_version(&format!("{status} ({problem})"))
    }

    /// Somebody answered, and it was no dashboard.
    fn strange(self, status: StatusCode) -> anyhow::Error {
        const ADDRESS: &str = "Give --server (or AFTERCOMMIT_SERVER) the address of the dashboard's first page, as a browser has it: with the \
                               path that it stands below, if there is one, and without /api/v1.";
        let (exit, step) = match status.as_u16() {
            300..=399 => (
                Exit::Usage,
                "It leads elsewhere, and is not followed: give --server (or AFTERCOMMIT_SERVER) the address itself.",
            ),
            401 | 403 => (
                Exit::Failure,
                "Something in front of it wants credentials of its own, or it is somebody else's: ask whoever runs the dashboard.",
            ),
            502..=504 => {
                (Exit::Unreachable, "Something in front of it does not reach it: look whether it runs.")
            }
            500..=599 => (Exit::Failure, "What answers there failed: look at its log."),
            408 | 429 => {
                (Exit::Unreachable, "Something in front of it turns requests away for now: try again later.")
            }
            413 => (Exit::Usage, "Something in front of it takes no request as large as this."),
            _ if !self.is_the_first() => return self.of_another_version(status.as_str()),
            _ => (Exit::Usage, ADDRESS),
        };
        let (server, asked) = (self.server, self.shown());
        fail(
            exit,
            format!("no dashboard of aftercommit answers at {server}: {asked} was answered {status}. {step}"),
        )
    }

    /// A dashboard is there, as it said itself before, and does not know what this program knows.
    fn of_another_version(self, answered: &str) -> anyhow::Error {
        let (server, asked) = (self.server, self.shown());
        let version = env!("CARGO_PKG_VERSION");
        fail(
            Exit::Failure,
            format!(
                "the dashboard {server} answered {asked} with {answered}, which none of this program's version {version} does: use the \
                 program of its version"
            ),
        )
    }

    /// Whether this is how one finds out what is there: whoever goes on had an answer to it.
    fn is_the_first(self) -> bool {
        self.url.path().ends_with("/api/v1/about")
    }

    /// As people are told of it. What is looked for is no part of where.
    fn shown(self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        format!("{} {url}", self.method)
    }
}

/// Whether a dashboard told it, of what was asked for: not somebody else, and not of an address at which nothing is.
fn is_told_by_a_dashboard(problem: &ProblemJson) -> bool {
    problem.kind.strip_prefix(OURS).is_some_and(|name| !NO_SUCH_PATH.contains(&name))
}

/// What a dashboard refused, in its words.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(crate) struct Refused {
    /// The exit code of a command that ends with it.
    pub(crate) exit: Exit,
    /// The problem, as it was sent.
    pub(crate) problem: ProblemJson,
    words: String,
}

impl Refused {
    fn of(status: StatusCode, problem: ProblemJson, has_token: bool) -> Self {
        let exit = match status.as_u16() {
            // 421: it is called by a name that is not its own.
            400 | 413 | 415 | 421 | 422 => Exit::Usage,
            404 => Exit::NotFound,
            409 => Exit::Forbidden,
            503 => Exit::Unreachable,
            _ => Exit::Failure,
        };
        let name = problem.kind.rsplit(':').next().unwrap_or_default();
        let step = match (status.as_u16(), has_token) {
            (401, false) => " Set AFTERCOMMIT_TOKEN, or give --token-file.",
            (401, true) => {
                " The token is not one of this dashboard's: correct AFTERCOMMIT_TOKEN or --token-file."
            }
            (403, _) if name == "forbidden" => {
                " Use a token whose role may do that (AFTERCOMMIT_TOKEN or --token-file)."
            }
            (422, _) if name == "reason-needed" => " Add --reason TEXT.",
            _ => "",
        };
        let words = format!("{}{step}", problem.detail.trim_end());
        // Errors are told without a full stop, unless there are several sentences.
        let words =
            if words.matches(". ").count() == 0 { words.trim_end_matches('.').to_owned() } else { words };
        Self { exit, problem, words }
    }

    /// The last word of the problem's type.
    pub(crate) fn name(&self) -> &str {
        self.problem.kind.rsplit(':').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::exit_of;

    const SERVER: &str = "http://localhost/ops/";

    fn asked(path: &str, of: impl FnOnce(Asked<'_>) -> anyhow::Error) -> (Exit, String) {
        let url = Url::parse(&format!("{SERVER}api/v1/{path}")).unwrap();
        let asked = Asked { server: SERVER, method: &Method::GET, url: &url, has_token: false };
        let problem = of(asked);
        (exit_of(&problem), problem.to_string())
    }

    fn told(path: &str, status: u16, body: &str) -> (Exit, String) {
        asked(path, |asked| asked.refused(StatusCode::from_u16(status).unwrap(), body.as_bytes()))
    }

    fn problem(name: &str, status: u16, detail: &str) -> String {
        format!(r#"{{"type":"{name}","title":"t","status":{status},"detail":"{detail}"}}"#)
    }

    #[test]
    fn what_it_refuses_is_told_in_its_words_and_with_what_to_set() {
        let refused =
            |status, detail| told("effects/7", status, &problem("urn:aftercommit:problem:x", status, detail));
        assert_eq!(refused(409, "It is failed now."), (Exit::Forbidden, "It is failed now".to_owned()));
        let (exit, words) = refused(401, "Credentials are needed.");
        assert!(exit == Exit::Failure && words.contains("AFTERCOMMIT_TOKEN"), "{words}");
        assert_eq!(refused(503, "Away.").0, Exit::Unreachable);
        assert_eq!(refused(404, "There is no effect 7.").0, Exit::NotFound);
        assert_eq!(refused(421, "A strange name.").0, Exit::Usage);
    }

    #[test]
    fn an_address_where_no_dashboard_answers_is_no_missing_effect() {
        let page = problem("urn:aftercommit:problem:no-such-page", 404, "Go to the overview.");
        let method = problem("urn:aftercommit:problem:method-not-allowed", 405, "Not so.");
        let others = problem("https://example.com/problems/not-found", 404, "No such product.");
        let nameless = r#"{"title":"Not found","status":404,"detail":"x"}"#;
        for (status, body) in [
            (404, page.as_str()),
            (405, &method),
            (404, &others),
            (404, nameless),
            (404, "<html>"),
            (400, r#"{"error":"bad"}"#),
            (410, ""),
        ] {
            let (exit, words) = told("about", status, body);
            assert_eq!(exit, Exit::Usage, "{body}: {words}");
            for word in [
                "no dashboard of aftercommit answers at http://localhost/ops/",
                "GET http://localhost/ops/api/v1/about was answered 4",
                "first page",
                "without /api/v1",
            ] {
                assert!(words.contains(word), "{word}: {words}");
            }
            assert!(!words.contains("overview") && !words.contains("product"), "{words}");
        }
        let unread = serde_json::from_str::<ProblemJson>("<html>").unwrap_err();
        let (exit, words) = asked("about", |asked| asked.misread(StatusCode::OK, &unread));
        assert!(exit == Exit::Usage && words.contains("was answered 200 OK"), "{words}");
    }

    #[test]
    fn what_stands_in_front_of_it_is_told_from_a_wrong_address() {
        for (status, exit, words) in [
            (302, Exit::Usage, "is not followed"),
            (403, Exit::Failure, "credentials of its own"),
            (502, Exit::Unreachable, "does not reach it"),
            (500, Exit::Failure, "failed"),
        ] {
            let (ended, said) = told("about", status, "<html>");
            assert!(ended == exit && said.contains(words), "{status}: {said}");
        }
    }

    #[test]
    fn a_dashboard_that_lacks_a_path_is_of_another_version_and_nothing_is_missing() {
        let page = problem("urn:aftercommit:problem:no-such-page", 404, "Go to the overview.");
        let (exit, words) = told("effects/7?key=sesame", 404, &page);
        assert!(exit == Exit::Failure && words.contains("of its version"), "{words}");
        assert!(words.contains("GET http://localhost/ops/api/v1/effects/7 with 404"), "{words}");
        let unread = serde_json::from_str::<ProblemJson>("{}").unwrap_err();
        let (exit, words) = asked("effects", |asked| asked.misread(StatusCode::OK, &unread));
        assert!(exit == Exit::Failure && words.contains("of its version"), "{words}");
    }
}
