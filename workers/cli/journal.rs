//! The journal: what a worker remembers of its database, in a file on its own machine, because whatever stands in the database
//! goes back with it. One file for all databases that workers of this machine work on, by their address.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use aftercommit::{engine::Journal, store::identity::Remembered};
use serde::{Deserialize, Serialize};

/// A file, and one database in it.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    address: String,
    /// Said once.
    complained: AtomicBool,
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    databases: BTreeMap<String, Remembered>,
}

impl JournalFile {
    /// The memory of the database that `url` leads to.
    pub(crate) fn new(path: PathBuf, url: &str) -> Self {
        Self { path, address: address(url), complained: AtomicBool::new(false) }
    }

    fn read(&self) -> io::Result<Content> {
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Content::default()),
            Err(error) => Err(error),
        }
    }

    /// Whoever shares the file waits: what is read here must still be there when it is replaced. What a token was, it stays,
    /// unless it belongs to another installation or an older epoch.
    fn replace(&self, seen: &Remembered) -> io::Result<()> {
        let lock = File::options().create(true).truncate(false).write(true).open(self.beside("lock"))?;
        lock.lock()?;
        let mut content = self.read().unwrap_or_default();
        let mut seen = seen.clone();
        if let Some(before) = content.databases.get(&self.address) {
            let same = before.installation == seen.installation && before.epoch == seen.epoch;
            if same && before.token > seen.token {
                (seen.token, seen.last_claim, seen.exact) = (before.token, before.last_claim, before.exact);
            }
        }
        content.databases.insert(self.address.clone(), seen);
        let new = self.beside("new");
        let mut file = File::create(&new)?;
        serde_json::to_writer_pretty(&mut file, &content)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".");
        name.push(what);
        name.into()
    }

    fn complain(&self, doing: &str, error: &io::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                journal = %self.path.display(), %error,
                "the journal cannot be {doing}: a database that goes back while this worker is stopped may not be noticed; \
                 name a file that it may write with worker.journal"
            );
        }
    }
}

impl Journal for JournalFile {
    fn recall(&self) -> Option<Remembered> {
        match self.read() {
            Ok(mut content) => content.databases.remove(&self.address),
            Err(error) => {
                self.complain("read", &error);
                None
            }
        }
    }

    fn write(&self, seen: &Remembered) {
        if let Err(error) = self.replace(seen) {
            self.complain("written", &error);
        }
    }
}

/// Where the journal lies when nobody says: where systemd keeps a service's state, else beside the configuration.
pub(crate) fn default_path(state_directory: Option<&str>, config: Option<&Path>) -> PathBuf {
    let name = "aftercommit.journal";
    // Several directories are separated by colons; the first is ours.
    let state =
        state_directory.and_then(|directories| directories.split(':').next()).filter(|d| !d.is_empty());
    match (state, config.and_then(Path::parent)) {
        (Some(directory), _) => Path::new(directory).join(name),
        (None, Some(folder)) => folder.join(name),
        (None, None) => PathBuf::from(name),
    }
}

/// A database's address, without what a password or a parameter would change.
fn address(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(parsed) if parsed.has_host() => {
            let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}://{}{port}{}", parsed.scheme(), parsed.host_str().unwrap_or_default(), parsed.path())
        }
        // A file is the same from wherever it is named.
        _ => match url.strip_prefix("sqlite:").map(|file| file.strip_prefix("//").unwrap_or(file)) {
            Some(file) => {
                let file = Path::new(file.split('?').next().unwrap_or(file));
                format!("sqlite:{}", std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).display())
            }
            None => url.split('?').next().unwrap_or(url).to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(token: i64) -> Remembered {
        Remembered {
            installation: "one".to_owned(),
            system_identifier: Some("7".to_owned()),
            timeline: Some(1),
            epoch: 0,
            token,
            last_claim: Some((token, 1)),
            exact: true,
        }
    }

    #[test]
    fn a_journal_keeps_the_highest_token_of_each_database() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aftercommit.journal");
        let shop = JournalFile::new(path.clone(), "postgres://a:secret@db/shop");
        let other = JournalFile::new(path.clone(), "postgres://db/other");
        assert_eq!(shop.recall(), None);
        shop.write(&remembered(7));
        other.write(&remembered(3));
        // Another worker of this machine, a moment behind.
        JournalFile::new(path.clone(), "postgres://b:secret2@db/shop").write(&remembered(5));
        assert_eq!(shop.recall(), Some(remembered(7)));
        assert_eq!(other.recall(), Some(remembered(3)));
        let after_lift = Remembered { epoch: 1, ..remembered(2) };
        shop.write(&after_lift);
        assert_eq!(shop.recall(), Some(after_lift));
        assert!(!std::fs::read_to_string(path).unwrap().contains("secret"));
    }

    #[test]
    fn a_journal_lies_where_the_service_keeps_its_state_or_beside_the_configuration() {
        let config = Path::new("etc/aftercommit.toml");
        assert_eq!(
            default_path(Some("/var/lib/a:/x"), Some(config)),
            Path::new("/var/lib/a/aftercommit.journal")
        );
        assert_eq!(default_path(None, Some(config)), Path::new("etc/aftercommit.journal"));
        assert_eq!(default_path(Some(""), None), Path::new("aftercommit.journal"));
    }
}
