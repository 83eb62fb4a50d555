//! Certificates of a test's own: an authority, a server's certificate that it signed, and an authority that signed nothing.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// They go with this value.
pub(super) struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// For a server at localhost and 127.0.0.1.
    pub(super) fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let made = Self { folder };
        let new = ["-newkey", "rsa:2048", "-nodes", "-days", "2"];
        for (name, subject) in [("ca", "/CN=test authority"), ("stranger", "/CN=another authority")] {
            let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
            let words = ["req", "-x509", "-keyout", &key, "-out", &certificate, "-subj", subject];
            made.openssl(&[&words[..], &new[..]].concat());
        }
        let words = ["req", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"];
        made.openssl(&[&words[..], &new[..3]].concat());
        let extensions = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        std::fs::write(made.path("extensions"), extensions).expect("the folder is ours");
        let words =
            ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
        let more = ["-days", "2", "-out", "server.pem", "-extfile", "extensions"];
        made.openssl(&[&words[..], &more[..]].concat());
        made
    }

    /// The authority that signed the server's certificate.
    pub(super) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// An authority that signed nothing.
    pub(super) fn stranger(&self) -> PathBuf {
        self.path("stranger.pem")
    }

    /// The server's certificate, and its key.
    pub(super) fn server(&self) -> [PathBuf; 2] {
        ["server.pem", "server.key"].map(|name| self.path(name))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, words: &[&str]) {
        let output = Command::new("openssl").args(words).current_dir(&self.folder).output();
        let output = output.expect("openssl is missing: apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A line of a downstream's table that names an authority.
pub(super) fn ca(path: &Path) -> String {
    format!("ca = \"{}\"\n", path.display())
}
