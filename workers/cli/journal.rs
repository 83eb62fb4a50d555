//! The journal: what a worker remembers of its database, in a file on its own machine, because whatever stands in the database
//! goes back with it. One file for all databases that workers of this machine work on, by their address.

use std::{
    collections::BTreeMap,
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use aftercommit::{engine::Journal, store::identity::Remembered};
use serde::{Deserialize, Serialize};

/// Whoever shares the file writes within milliseconds.
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(20);
const LOCK_TRIES: u32 = 100;

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
        self.lock(&lock)?;
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

    /// A process that was stopped may hold it for ever: then nothing is written now, and soon it is tried again.
    fn lock(&self, file: &File) -> io::Result<()> {
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_LOOK_EVERY),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "another process holds its lock"))
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
        Ok(parsed) if parsed.scheme().starts_with("postgres") => {
            // As the connection takes them: a parameter goes before what stands in front of it.
            let named = |names: [&str; 2]| {
                let pairs = parsed.query_pairs().filter(|(name, _)| names.contains(&name.as_ref()));
                pairs.last().map(|(_, value)| value.into_owned())
            };
            let host = named(["host", "hostaddr"]);
            let host = host.or_else(|| parsed.host_str().map(str::to_owned)).unwrap_or_default();
            let port = named(["port", "port"]).or_else(|| parsed.port().map(|port| port.to_string()));
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            let name = named(["dbname", "dbname"]).map(|name| format!("/{name}"));
            let name = name.unwrap_or_else(|| parsed.path().to_owned());
            format!("{}://{host}{port}{name}", parsed.scheme())
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
    fn an_address_is_where_the_connection_leads_and_tells_no_secret() {
        let same = |one, other| assert_eq!(address(one), address(other), "{one} {other}");
        same("postgres://a:secret@db/shop?sslmode=require", "postgres://db/shop");
        same("postgres:///shop?host=/run/a", "postgres://else/?host=/run/a&dbname=shop&password=secret");
        let all = ["", "?host=/run/a", "?host=/run/b", "?host=/run/a&port=5433", "?dbname=other", "?port=1"];
        let all: std::collections::BTreeSet<_> =
            all.iter().map(|query| address(&format!("postgres:///shop{query}"))).collect();
        assert_eq!(all.len(), 6, "{all:?}");
    }

    #[test]
    fn a_journal_that_somebody_holds_is_left_alone_soon() {
        let folder = tempfile::tempdir().unwrap();
        let journal = JournalFile::new(folder.path().join("aftercommit.journal"), "postgres://db/shop");
        let held = File::create(journal.beside("lock")).unwrap();
        held.lock().unwrap();
        journal.write(&remembered(7));
        assert_eq!(journal.recall(), None, "nothing was written");
        drop(held);
        journal.write(&remembered(7));
        assert_eq!(journal.recall(), Some(remembered(7)));
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
