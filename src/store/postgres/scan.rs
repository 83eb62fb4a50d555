//! How far a process has looked at a downstream's ready lane, and what it must look at again. Pure: the statements are in
//! [`super::claim`].

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// How often rows are looked for from the floor.
const RELOOK_EVERY: Duration = Duration::from_secs(1);
/// A look from the floor that took long (an application's open transaction keeps the floor down) is not repeated before this
/// many times its duration has passed.
const RELOOK_REST: u32 = 20;
/// A position in the scan: everything up to (xid, id) was looked at.
pub(super) type Position = (u64, i64);

/// One downstream's scan of its ready lane.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) watermark: Position,
    /// Transactions below the watermark that were open at the last look.
    pub(super) open: BTreeSet<u64>,
    /// No live row is at or below this.
    pub(super) floor: Position,
    relook_after: Option<Instant>,
}

/// The database's view of which transactions have ended: `xmin:xmax:xip,…`.
pub(super) struct Snapshot {
    xmin: u64,
    pub(super) open: BTreeSet<u64>,
}

impl Snapshot {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let xmin = parts.next()?.parse().ok()?;
        let _xmax = parts.next()?;
        let open = parts.next()?.split(',').filter(|xid| !xid.is_empty());
        Some(Self { xmin, open: open.map(str::parse).collect::<Result<_, _>>().ok()? })
    }
}

/// What one look at one downstream found, for its scan.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) found: u32,
    pub(super) late: u32,
    pub(super) last_new: Option<Position>,
    pub(super) oldest_live: Option<Position>,
}

impl Scan {
    pub(super) fn relook_is_due(&self, now: Instant) -> bool {
        self.relook_after.is_none_or(|after| now >= after)
    }

    /// After a look from the watermark.
    pub(super) fn advance(&mut self, look: &Look, slots: u32, snapshot: &Snapshot) {
        self.watermark = self.watermark.max(look.last_new.unwrap_or_default());
        if look.late < slots {
            // Every row of the transactions that have ended by now was taken or is somebody else's.
            self.open.retain(|xid| snapshot.open.contains(xid));
        }
        self.remember(snapshot);
    }

    /// After a look from the floor.
    pub(super) fn advance_from_floor(&mut self, look: &Look, slots: u32, snapshot: &Snapshot) {
        if look.found < slots {
            self.watermark = self.watermark.max(look.last_new.unwrap_or_default());
        } else {
            // There may be more behind the last one: the next look goes on there.
            self.watermark = look.last_new.unwrap_or(self.floor);
        }
        self.open.clear();
        self.remember(snapshot);
        let ended = (snapshot.xmin, i64::MIN);
        let floor = look.oldest_live.map_or(ended, |(xid, id)| (xid, id.saturating_sub(1)).min(ended));
        self.floor = self.floor.max(floor);
    }

    /// A look from the floor, asked for at `asked_at`, was answered.
    pub(super) fn relooked(&mut self, asked_at: Instant, now: Instant) {
        let rest = (now - asked_at) * RELOOK_REST;
        self.relook_after = Some(now + RELOOK_EVERY.max(rest));
    }

    fn remember(&mut self, snapshot: &Snapshot) {
        self.open.extend(snapshot.open.range(..=self.watermark.0));
    }
}

/// `ord:xid:id` of the oldest live row after a floor.
pub(super) fn note_floor(looks: &mut [Look], floor: Option<&str>) {
    let mut parts = floor.into_iter().flat_map(|floor| floor.split(':'));
    let (Some(ord), Some(xid), Some(id)) = (parts.next(), parts.next(), parts.next()) else { return };
    let look = ord.parse::<usize>().ok().and_then(|ord| looks.get_mut(ord.wrapping_sub(1)));
    if let (Some(look), Ok(xid), Ok(id)) = (look, xid.parse(), id.parse()) {
        look.oldest_live = Some((xid, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).expect("a snapshot")
    }

    #[test]
    fn a_transaction_that_was_open_below_the_watermark_is_looked_for_until_it_ended() {
        let mut scan = Scan::default();
        let found = Look { found: 1, last_new: Some((105, 9)), ..Look::default() };
        scan.advance(&found, 10, &snapshot("100:107:100,106"));
        assert_eq!((scan.watermark, scan.open.clone()), ((105, 9), BTreeSet::from([100])));
        scan.advance(&Look::default(), 10, &snapshot("100:108:100,106"));
        assert_eq!(scan.open, BTreeSet::from([100]));
        // It ended, but a full look may have left some of its rows.
        scan.advance(&Look { found: 10, late: 10, ..Look::default() }, 10, &snapshot("106:109:106"));
        assert_eq!(scan.open, BTreeSet::from([100]));
        scan.advance(&Look { found: 3, late: 3, ..Look::default() }, 10, &snapshot("106:109:106"));
        assert!(scan.open.is_empty());
    }

    #[test]
    fn the_floor_never_passes_a_live_row_or_an_open_transaction() {
        let mut scan = Scan { watermark: (200, 1), ..Scan::default() };
        let live = Look { oldest_live: Some((150, 7)), ..Look::default() };
        scan.advance_from_floor(&live, 10, &snapshot("180:210:180"));
        assert_eq!((scan.floor, scan.watermark), ((150, 6), (200, 1)));
        scan.advance_from_floor(&Look::default(), 10, &snapshot("180:210:180"));
        assert_eq!((scan.floor, scan.open.clone()), ((180, i64::MIN), BTreeSet::from([180])));
        // A full look goes on where it stopped.
        let full = Look { found: 10, last_new: Some((190, 3)), ..Look::default() };
        scan.advance_from_floor(&full, 10, &snapshot("211:211:"));
        assert_eq!(scan.watermark, (190, 3));
    }
}
