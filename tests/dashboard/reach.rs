//! The command line as somebody runs it: at the database itself, or through a dashboard. Cases that hold for both are written once.

use std::time::Duration;

use aftercommit_dashboard::{BulkLimits, Role, Settings};
use tokio::process::Command;

use super::{Site, everybody, token};
use crate::{
    e2e::processes::{aftercommit, run, run_ok},
    support::TestDatabase,
};

/// Longer than a command takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// How the command line gets at the effects.
pub(crate) enum Reach {
    /// It opens the database at this URL.
    Here(String),
    /// It asks a dashboard, as an operator.
    There(Site),
}

impl Reach {
    /// At the database itself.
    pub(crate) async fn here(db: &TestDatabase) -> Self {
        Self::Here(db.url.clone())
    }

    /// Through a dashboard.
    pub(crate) async fn there(db: &TestDatabase) -> Self {
        Self::There(Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await)
    }

    /// Through a dashboard whose bulks do so many effects a second.
    pub(crate) async fn slowly(db: &TestDatabase, rate: u32) -> Self {
        let bulk = BulkLimits { rate, ..BulkLimits::default() };
        Self::There(
            Site::open(&db.store, Settings { access: everybody(), bulk, ..Settings::default() }).await,
        )
    }

    /// Tells the command where.
    pub(crate) fn lead(&self, command: &mut Command) {
        match self {
            Self::Here(url) => command.env("DATABASE_URL", url),
            Self::There(site) => command
                .env("AFTERCOMMIT_SERVER", format!("http://{}", site.address))
                .env("AFTERCOMMIT_TOKEN", token(Role::Operator)),
        };
        command.current_dir(std::env::temp_dir());
    }

    /// The command line with these words.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = aftercommit();
        command.args(words);
        self.lead(&mut command);
        command
    }

    /// What it prints; it must succeed.
    pub(crate) async fn out(&self, words: &[&str]) -> String {
        run_ok(&mut self.command(words), SOON).await
    }

    /// Its exit code, and what it prints on both ways.
    pub(crate) async fn ends(&self, words: &[&str]) -> (Option<i32>, String) {
        let (status, out, err) = run(&mut self.command(words), SOON).await;
        (status.code(), out + &err)
    }
}

/// Declares each case, an `async fn(&TestDatabase, &Reach)` of the same module, on every database: `here::CASE` and `there::CASE`.
macro_rules! here_and_there {
    ($($case:ident),+ $(,)?) => {
        mod here {
            $(async fn $case(db: &$crate::support::TestDatabase) {
                super::$case(db, &$crate::dashboard::Reach::here(db).await).await;
            })+
            $crate::support::on_every_database! { $($case),+ }
        }
        mod there {
            $(async fn $case(db: &$crate::support::TestDatabase) {
                super::$case(db, &$crate::dashboard::Reach::there(db).await).await;
            })+
            $crate::support::on_every_database! { $($case),+ }
        }
    };
}
pub(crate) use here_and_there;
