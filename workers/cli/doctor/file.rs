//! A SQLite file as the system sees it: who may read it, and on what it lies.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use super::Check;
use crate::cli::sqlite_file;

/// File systems that live on another machine, by the number that Linux gives them: the shared memory of a write-ahead log
/// does not work across machines.
const REMOTE: [(i64, &str); 6] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "Ceph"),
];
/// May be anything.
const FUSE: i64 = 0x6573_5546;

/// What is to be said about the file of `url`; nothing where there is none.
pub(super) fn judge(url: &str) -> Vec<Check> {
    let Some(path) = sqlite_file(url).filter(|path| path.exists()) else { return Vec::new() };
    [permissions(&path), place(&path)].into_iter().flatten().collect()
}

fn permissions(path: &Path) -> Option<Check> {
    let mode = path.metadata().ok()?.permissions().mode();
    Some(of_mode(mode, &path.display().to_string()))
}

fn of_mode(mode: u32, shown: &str) -> Check {
    if mode & 0o006 == 0 {
        return Check::ok("file", format!("{shown} is for its owner and group only"));
    }
    let found = format!(
        "{shown} may be read or written by everybody here (mode {:o}): payloads stand in it",
        mode & 0o777
    );
    Check::warn("file", found, format!("chmod o-rwx {shown}"))
}

/// Differs because only Linux tells a number, and a signed one at that.
#[cfg(target_os = "linux")]
fn place(path: &Path) -> Option<Check> {
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    Some(of_kind(kind & 0xFFFF_FFFF))
}

#[cfg(not(target_os = "linux"))]
fn place(_path: &Path) -> Option<Check> {
    None
}

fn of_kind(kind: i64) -> Check {
    const CHECK: &str = "file system";
    if let Some((_, name)) = REMOTE.iter().find(|(number, _)| *number == kind) {
        let found = format!("{name}: a write-ahead log works on one machine only, and can lose commits here");
        return Check::fail(CHECK, found, "move the file to a local disk, or use PostgreSQL");
    }
    if kind == FUSE {
        let found = "FUSE: it may lie on another machine, and may not keep what it says it wrote";
        return Check::warn(CHECK, found, "make sure that it is local, or move the file");
    }
    Check::ok(CHECK, "local")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Level;

    #[test]
    fn a_file_that_everybody_may_read_is_told() {
        assert_eq!(of_mode(0o100_640, "x.db").level, Level::Ok);
        let finding = of_mode(0o100_644, "x.db");
        assert!(finding.level == Level::Warn && finding.found.contains("644"), "{finding:?}");
    }

    #[test]
    fn a_file_on_another_machine_fails() {
        assert_eq!(of_kind(0xEF53).level, Level::Ok);
        assert_eq!(of_kind(0x6969).level, Level::Fail);
        assert_eq!(of_kind(FUSE).level, Level::Warn);
    }
}
