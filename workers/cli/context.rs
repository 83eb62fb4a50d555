//! What a command runs with: the global flags, the settings they lead to, the database they name.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use aftercommit::store::{self, Database, Options};
use aftercommit_workers::config::{ConfigError, Settings, Sources};
use anyhow::Context as _;
use rustix::fs::{Access, access};

use super::{Exit, Global, fail};

/// Where a configuration is looked for when nobody names one.
const DEFAULT_FILE: &str = "aftercommit.toml";
/// What our variables begin with.
const PREFIX: &str = "AFTERCOMMIT__";
/// Variables that name a database, the stronger one first.
pub(super) const DATABASE_VARIABLES: [&str; 2] = ["AFTERCOMMIT__DATABASE", "DATABASE_URL"];
/// The database of `aftercommit dev`, in the working directory.
pub(crate) const DEV_DATABASE: &str = "sqlite:aftercommit-dev.db";

/// The flags that every command takes, and what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(super) global: Global,
}

impl Context {
    /// A context with these flags.
    pub(crate) fn new(global: Global) -> Self {
        Self { global }
    }

    /// Whether data is printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.global.json
    }

    /// Refuses `--json` where what is printed is no data: `what` says what it is.
    ///
    /// # Errors
    ///
    /// When `--json` was given.
    pub(crate) fn refuse_json(&self, what: &str) -> anyhow::Result<()> {
        if self.json() {
            return Err(fail(Exit::Usage, format!("{what}, for which there is no JSON: leave out --json")));
        }
        Ok(())
    }

    /// The `--database` flag.
    pub(crate) fn database_flag(&self) -> Option<&str> {
        self.global.database.as_deref()
    }

    /// The configuration file that is read: the one named, else the one in the working directory.
    ///
    /// # Errors
    ///
    /// When a file was named and does not exist.
    pub(crate) fn file(&self) -> anyhow::Result<Option<PathBuf>> {
        match &self.global.config {
            Some(path) if path.as_os_str().is_empty() => Ok(default_file()),
            Some(path) if !path.exists() => Err(fail(
                Exit::Usage,
                format!(
                    "there is no configuration file {}; `aftercommit config init > {}` writes one",
                    path.display(),
                    path.display()
                ),
            )),
            Some(path) => Ok(Some(path.clone())),
            None => Ok(default_file()),
        }
    }

    /// Whether there is any configuration: a file, or variables of our own.
    ///
    /// # Errors
    ///
    /// When a file was named and does not exist.
    pub(crate) fn configured(&self) -> anyhow::Result<bool> {
        let by_variables = || std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with(PREFIX));
        Ok(self.file()?.is_some() || by_variables())
    }

    /// The effective settings.
    ///
    /// # Errors
    ///
    /// When the configuration is wrong, with a line for each thing that is, or there is none.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        self.settings_over(Vec::new())
    }

    /// [`Self::settings`] with a command's own flags laid over: dotted key and value.
    ///
    /// # Errors
    ///
    /// The same.
    pub(crate) fn settings_over(&self, flags: Vec<(String, String)>) -> anyhow::Result<Settings> {
        self.load_over(flags)?.map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            fail(Exit::Usage, lines.join("\n"))
        })
    }

    /// The effective settings, or everything that is wrong with them.
    ///
    /// # Errors
    ///
    /// When there is no configuration.
    pub(crate) fn load(&self) -> anyhow::Result<Result<Settings, Vec<ConfigError>>> {
        self.load_over(Vec::new())
    }

    fn load_over(&self, flags: Vec<(String, String)>) -> anyhow::Result<Result<Settings, Vec<ConfigError>>> {
        let file = self.file()?;
        if file.is_none() && !self.configured()? {
            return Err(fail(
                Exit::Usage,
                format!(
                    "there is no {DEFAULT_FILE} here: name one with --config, or write one with \
                     `aftercommit config init > {DEFAULT_FILE}`"
                ),
            ));
        }
        let database = self.global.database.iter().map(|url| ("database".to_owned(), url.clone()));
        let overrides = database.chain(flags).collect();
        if let Some(file) = &file {
            super::source::remember(file);
        }
        let sources = Sources { file, env: std::env::vars().collect(), overrides, dev: false };
        Ok(Settings::load_all(&sources))
    }

    /// The database's URL: flag, environment, file; else the playground's, where there is one.
    ///
    /// # Errors
    ///
    /// When nobody names one.
    pub(crate) fn database_url(&self) -> anyhow::Result<String> {
        if let Some(url) = &self.global.database {
            return Ok(url.clone());
        }
        for variable in DATABASE_VARIABLES {
            if let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) {
                return Ok(url);
            }
        }
        if self.file()?.is_some() {
            return Ok(self.settings()?.database);
        }
        if sqlite_file(DEV_DATABASE).is_some_and(|path| path.exists()) {
            return Ok(DEV_DATABASE.to_owned());
        }
        Err(fail(
            Exit::Usage,
            format!("no database is named: give --database URL, set DATABASE_URL, or write {DEFAULT_FILE}"),
        ))
    }

    /// Opens the database that flag, environment or file name.
    ///
    /// # Errors
    ///
    /// When nobody names one, or it cannot be used.
    pub(crate) async fn open(&self) -> anyhow::Result<Arc<dyn Database>> {
        let store = self.open_quietly().await?;
        // Whoever may not read it is told nothing; a worker's log says it in any case.
        match store.hold().await {
            Ok(Some(hold)) => super::talk!("{}", super::hold::banner(&hold)),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "whether the fleet is on hold cannot be read"),
        }
        Ok(store)
    }

    /// [`Self::open`] that does not say that the fleet is on hold.
    ///
    /// # Errors
    ///
    /// When nobody names a database, or it cannot be used.
    pub(crate) async fn open_quietly(&self) -> anyhow::Result<Arc<dyn Database>> {
        open(&self.database_url()?, &self.options()?).await
    }

    /// How to connect to the database. Where a configuration names an environment, nobody reads or decides in another one's
    /// database by mistake.
    ///
    /// # Errors
    ///
    /// When the configuration is wrong.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        Ok(match self.file()? {
            Some(_) => self.settings()?.options(),
            None => Options::default(),
        })
    }

    /// How this program was called, with the flags that lead to the same database: for commands that a person can copy.
    pub(crate) fn invocation(&self) -> String {
        let mut words = vec![program()];
        if let Some(path) = &self.global.config
            && std::env::var_os("AFTERCOMMIT_CONFIG").is_none()
        {
            words.push(format!("--config {}", quoted(&path.display().to_string())));
        }
        if let Some(server) = &self.global.server {
            words.push(format!("--server {}", quoted(&without_password(server))));
        }
        if let Some(url) = &self.global.database {
            words.push(format!("--database {}", quoted(&without_password(url))));
        }
        words.join(" ")
    }

    /// Makes [`Self::invocation`] known to whatever prints a hint.
    pub(crate) fn announce(&self) {
        // The first one stands: a process runs one command.
        INVOCATION.set(self.invocation()).ok();
    }
}

/// How this process was called, for hints in errors that are made where no context is at hand.
static INVOCATION: OnceLock<String> = OnceLock::new();

/// [`Context::invocation`] of this process.
pub(crate) fn invocation() -> String {
    INVOCATION.get().cloned().unwrap_or_else(program)
}

/// How this program was called.
pub(crate) fn program() -> String {
    let called: Option<OsString> = std::env::args_os().next();
    called.map_or_else(|| "aftercommit".to_owned(), |word| quoted(&word.to_string_lossy()))
}

fn default_file() -> Option<PathBuf> {
    let path = PathBuf::from(DEFAULT_FILE);
    path.exists().then_some(path)
}

/// Opens a database; what went wrong names it, without its password.
///
/// # Errors
///
/// When it cannot be used.
pub(crate) async fn open(url: &str, options: &Options) -> anyhow::Result<Arc<dyn Database>> {
    usable_file(url)?;
    store::connect(url, options).await.with_context(|| format!("the database {}", without_password(url)))
}

/// SQLite's own words for a file that is not there, or may not be written, help nobody.
pub(crate) fn usable_file(url: &str) -> anyhow::Result<()> {
    let Some(path) = sqlite_file(url) else { return Ok(()) };
    let place = path.display();
    match path.try_exists() {
        Ok(true) => writable(&path),
        Ok(false) => Err(fail(
            Exit::Usage,
            format!(
                "there is no database file {place}: check the path, or create it with `{} migrate`",
                invocation()
            ),
        )),
        Err(problem) => {
            Err(fail(Exit::Usage, format!("the database file {place} cannot be reached: {problem}")))
        }
    }
}

/// Refuses a file that this user may not change, or whose folder may not hold its write-ahead log. Asked of the system, not
/// by opening: to close a SQLite file drops the locks that this process holds on it.
pub(crate) fn writable(file: &Path) -> anyhow::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let needs = Access::READ_OK | Access::WRITE_OK;
    let refused = |what: &str, path: &Path, problem: rustix::io::Errno| {
        let problem = std::io::Error::from(problem);
        if problem.kind() == std::io::ErrorKind::NotFound {
            return fail(
                Exit::Usage,
                format!("there is no folder {}: make it, or check the path", path.display()),
            );
        }
        fail(
            Exit::Usage,
            format!(
                "{what} {} cannot be written ({problem}): let this user write it, or check the path",
                path.display()
            ),
        )
    };
    if file.exists() {
        access(file, needs).map_err(|problem| refused("the database file", file, problem))?;
    }
    access(folder, needs | Access::EXEC_OK).map_err(|problem| refused("the folder", folder, problem))
}

/// The file of a SQLite URL; `None` for other databases and for memory.
pub(crate) fn sqlite_file(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let path = rest.split('?').next().unwrap_or(rest);
    (!path.is_empty() && path != ":memory:").then(|| PathBuf::from(path))
}

/// A URL as it may be shown.
pub(crate) fn without_password(url: &str) -> String {
    aftercommit_workers::config::masked_url(url)
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::exit_of;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("sqlite:shop.db"), "sqlite:shop.db");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = without_password("postgres://shop:hush@localhost/shop");
        assert!(!shown.contains("hush") && shown.contains("shop:***@localhost"), "{shown}");
        for url in [
            "postgres://shop:hush@local host/shop",
            "postgres://h/shop?user=shop&password=hush&sslmode=require",
        ] {
            let shown = without_password(url);
            assert!(!shown.contains("hush") && shown.contains("***"), "{shown}");
        }
        assert_eq!(without_password("sqlite:shop.db"), "sqlite:shop.db");
    }

    #[test]
    fn a_file_that_is_not_there_is_a_mistake_and_the_next_step_is_named() {
        let problem = usable_file("sqlite:/no/such/folder/x.db").unwrap_err();
        assert_eq!(exit_of(&problem), Exit::Usage);
        assert!(problem.to_string().contains("check the path") && problem.to_string().contains(" migrate`"));
        let problem = writable(Path::new("/no/such/folder/x.db")).unwrap_err();
        assert_eq!(exit_of(&problem), Exit::Usage);
        assert!(problem.to_string().contains("/no/such/folder"), "{problem}");
        assert!(usable_file("sqlite::memory:").is_ok() && usable_file("postgres://localhost/x").is_ok());
    }

    #[test]
    fn sqlite_urls_name_their_file() {
        assert_eq!(sqlite_file("sqlite:shop.db"), Some(PathBuf::from("shop.db")));
        assert_eq!(sqlite_file("sqlite:///var/shop.db?mode=rw"), Some(PathBuf::from("/var/shop.db")));
        assert_eq!(sqlite_file("sqlite::memory:"), None);
        assert_eq!(sqlite_file("postgres://localhost/shop"), None);
    }
}
