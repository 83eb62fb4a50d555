//! Which configuration a long-running command reads, and which database it works on: said before anything else, since nobody should
//! watch, or act on, another database than they think.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use aftercommit_workers::config::{Settings, Sources};

use super::{
    Context,
    context::{DATABASE_VARIABLES, without_password},
};

/// The file whose settings this process read, for errors that are made where no context is at hand.
static READ: OnceLock<PathBuf> = OnceLock::new();

/// Makes the file known whose settings were read.
pub(super) fn remember(file: &Path) {
    // The first one stands: a process runs one command.
    READ.set(file.to_owned()).ok();
}

/// The file whose settings were read, if any were.
pub(super) fn file_read() -> Option<&'static Path> {
    READ.get().map(PathBuf::as_path)
}

impl Context {
    /// What is read, and what is used instead of what stands there: a sentence each. Settings are those of the configuration; `None`
    /// where there is none.
    ///
    /// # Errors
    ///
    /// When a file was named and does not exist.
    pub(super) fn sources(&self, settings: Option<&Settings>) -> anyhow::Result<Vec<String>> {
        let file = self.file()?;
        let Some(settings) = settings else {
            return Ok(vec!["no configuration is read: none was named, and none is here".to_owned()]);
        };
        let of = format!("environment {}", settings.environment);
        let Some(file) = file else {
            return Ok(vec![format!("the configuration is read from variables AFTERCOMMIT__… alone, {of}")]);
        };
        let shown = std::path::absolute(&file).unwrap_or_else(|_| file.clone());
        let mut said = vec![format!("the configuration is read from {}, {of}", shown.display())];
        if let (Some(named), Some(other)) = (self.names_the_database(), database_of(&file))
            && other != settings.database
        {
            said.push(format!(
                "the database is {}, as {named} says, and not the configuration's {}",
                without_password(&settings.database),
                without_password(&other)
            ));
        }
        Ok(said)
    }

    /// What names the database besides a file, if anything does: the strongest.
    fn names_the_database(&self) -> Option<&'static str> {
        let set = |name: &&str| std::env::var(name).is_ok_and(|url| !url.is_empty());
        let flag = self.database_flag().map(|_| "--database");
        flag.or_else(|| DATABASE_VARIABLES.into_iter().find(|name| set(name)))
    }

    /// What a worker here would read, and the playground, which works on `url`, does not: a sentence each.
    pub(crate) fn not_read_by_dev(&self, url: &str) -> Vec<String> {
        let file = self.file().ok().flatten();
        let file = file
            .map(|file| format!("{} is not read: the playground has settings of its own", file.display()));
        let variable = self.names_the_database().filter(|named| *named != "--database");
        let variable = variable.map(|named| {
            format!(
                "{named} is not used: the playground works on {}, unless --database names another",
                without_password(url)
            )
        });
        file.into_iter().chain(variable).collect()
    }
}

/// The database that the file itself names, if it can be read by itself.
fn database_of(file: &Path) -> Option<String> {
    let env = std::env::vars().filter(|(name, _)| !DATABASE_VARIABLES.contains(&name.as_str())).collect();
    let alone = Sources { file: Some(file.to_owned()), env, overrides: Vec::new(), dev: false };
    Settings::load(&alone).ok().map(|settings| settings.database)
}
