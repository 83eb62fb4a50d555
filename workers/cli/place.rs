//! Where people's commands do their work: at the database itself, or through a dashboard.

use aftercommit::visible::clean;

use super::{
    Context, Exit, fail,
    people::{Here, People},
    remote::{Credentials, Remote},
};

/// The variable that names a dashboard to work through.
const SERVER_VARIABLE: &str = "AFTERCOMMIT_SERVER";

impl Context {
    /// The dashboard that is worked through: the flag's, else the environment's unless a database was named by a flag.
    fn server(&self) -> Option<(String, &'static str)> {
        if let Some(server) = &self.global.server {
            return Some((server.clone(), "--server"));
        }
        if self.global.database.is_some() {
            return None;
        }
        let server = std::env::var(SERVER_VARIABLE).ok().filter(|server| !server.is_empty());
        server.map(|server| (server, SERVER_VARIABLE))
    }

    /// Refuses to work through a dashboard: `what` says why, as a sentence begins.
    ///
    /// # Errors
    ///
    /// When one was named.
    pub(crate) fn refuse_server(&self, what: &str) -> anyhow::Result<()> {
        let Some((_, named)) = self.server() else { return Ok(()) };
        let way = if named == SERVER_VARIABLE { "unset AFTERCOMMIT_SERVER" } else { "leave out --server" };
        Err(fail(
            Exit::Usage,
            format!("{what}: no dashboard can do that for you; {way}, or name the database with --database"),
        ))
    }

    /// The dashboard that is worked through, if one is.
    ///
    /// # Errors
    ///
    /// When it is named wrongly.
    pub(crate) fn remote(&self) -> anyhow::Result<Option<Remote>> {
        let Some((server, _)) = self.server() else { return Ok(None) };
        let credentials = Credentials::of(self.global.token_file.as_deref());
        Remote::new(&server, &credentials).map(Some)
    }

    /// Whom people's commands ask: the database, or the dashboard that is worked through.
    ///
    /// # Errors
    ///
    /// When nobody names either, or it cannot be used.
    pub(crate) async fn people(&self) -> anyhow::Result<Box<dyn People>> {
        let Some(remote) = self.remote()? else { return Ok(Box::new(Here(self.open().await?))) };
        if let Some(reason) = remote.about().await?.hold {
            super::talk!(
                "HOLD: {}. Nothing is sent until somebody runs `aftercommit hold lift` at the database.",
                clean(&reason)
            );
        }
        Ok(Box::new(remote))
    }
}
