use super::*;
use crate::clock::ManualClock;

const DAY: Duration = Duration::from_secs(86_400);

fn endpoint(failing_since: Option<i64>, disabled: bool) -> Endpoint {
    let disabled = disabled.then(|| Disabled { since: Timestamp::from_micros(0), reason: String::new() });
    let failing_since = failing_since.map(Timestamp::from_micros);
    Endpoint { name: "acme".into(), url: None, secrets: None, disabled, failing_since }
}

fn called(url: Option<&str>) -> Called {
    Called { name: "acme".into(), url: url.map(str::to_owned) }
}

fn directory() -> (Directory, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
    (Directory::new(None, Arc::<ManualClock>::clone(&clock)), clock)
}

fn noted(took: bool, last: Sign) -> Noted {
    Noted { took, last }
}

#[test]
fn only_nothing_but_failures_for_long_or_the_endpoint_itself_disables_it() {
    let failed = || noted(false, Sign::Failed("HTTP 500".to_owned()));
    let at = |days: u32| Timestamp::from_micros(0).plus(DAY * days);
    let called = called(None);
    let of = |since, noted: &Noted, now| {
        change(Some(&endpoint(since, false)), (&called, noted), now, Some(5 * DAY))
    };
    assert_eq!(change(None, (&called, &failed()), at(0), Some(5 * DAY)), Some(Change::Fails));
    assert_eq!(of(Some(0), &failed(), at(4)), None);
    assert!(matches!(of(Some(0), &failed(), at(5)), Some(Change::Disable(why)) if why.contains("HTTP 500")));
    assert_eq!(change(Some(&endpoint(Some(0), false)), (&called, &failed()), at(500), None), None);
    // One success in between, and all begins anew.
    let mixed = noted(true, Sign::Failed(String::new()));
    assert_eq!(of(Some(0), &mixed, at(5)), Some(Change::Works));
    assert_eq!(of(Some(0), &noted(true, Sign::Took), at(5)), Some(Change::Works));
    assert_eq!(of(None, &noted(true, Sign::Took), at(5)), None);
    let gone = noted(true, Sign::Gone("HTTP 410".to_owned()));
    assert_eq!(of(None, &gone, at(0)), Some(Change::Disable("HTTP 410".to_owned())));
    let disabled = endpoint(None, true);
    assert_eq!(change(Some(&disabled), (&called, &gone), at(0), None), None, "it is disabled already");
}

#[test]
fn what_one_place_showed_changes_nothing_at_another_nor_where_the_row_is_gone() {
    let gone = noted(false, Sign::Gone("HTTP 410".to_owned()));
    let row = Endpoint { url: Some("https://new".to_owned()), ..endpoint(None, false) };
    let of =
        |known: Option<&Endpoint>, url| change(known, (&called(url), &gone), Timestamp::from_micros(0), None);
    assert!(of(Some(&row), Some("https://new")).is_some(), "the place itself");
    assert_eq!(of(Some(&row), Some("https://old")), None, "it moved");
    assert_eq!(of(None, Some("https://old")), None, "it was dropped");
    assert!(of(None, None).is_some(), "one of the configuration needs no row");
    // Neither hides what the other showed.
    let (directory, _clock) = directory();
    directory.note(called(Some("https://new")), Sign::Gone("HTTP 410".to_owned()));
    directory.note(called(Some("https://old")), Sign::Took);
    assert_eq!(directory.take().len(), 2);
}

#[test]
fn what_could_not_be_written_is_noted_again_with_all_that_it_said() {
    let (directory, _clock) = directory();
    let failed = || Sign::Failed("HTTP 500".to_owned());
    directory.note(called(None), Sign::Took);
    directory.note(called(None), failed());
    let taken = directory.take();
    directory.note(called(None), failed());
    for (called, noted) in taken {
        directory.put_back(called, noted);
    }
    assert_eq!(directory.take()[&called(None)], noted(true, failed()), "that it took one is not forgotten");
    directory.note(called(None), Sign::Took);
    directory.put_back(called(None), noted(false, Sign::Gone(String::new())));
    assert!(matches!(directory.take()[&called(None)].last, Sign::Gone(_)));
}

#[test]
fn rows_that_were_read_long_ago_count_as_unread() {
    let (directory, clock) = directory();
    assert!(!directory.is_read());
    let reading = directory.begin_reading();
    clock.advance(Duration::from_secs(4));
    directory.put(reading, vec![endpoint(None, false)]);
    assert!(directory.is_read());
    clock.advance(Duration::from_secs(6));
    assert!(directory.is_read());
    clock.advance(Duration::from_millis(1));
    assert!(!directory.is_read(), "ten seconds from where the reading began");
    directory.put(directory.begin_reading(), vec![]);
    assert!(directory.is_read());
}

#[tokio::test]
async fn rows_are_wanted_at_once_only_by_who_says_that_nothing_more_may_be_sent() {
    use futures_util::FutureExt as _;
    let (directory, _clock) = directory();
    for sign in [Sign::Took, Sign::Failed("HTTP 500".to_owned())] {
        directory.note(called(None), sign);
        assert!(directory.wanted().now_or_never().is_none(), "the next reading is early enough");
    }
    directory.note(called(None), Sign::Gone("HTTP 410".to_owned()));
    assert!(directory.wanted().now_or_never().is_some());
}

#[test]
fn a_success_after_it_said_gone_does_not_hide_that_it_said_so() {
    let (directory, _clock) = directory();
    directory.note(called(None), Sign::Gone("HTTP 410".to_owned()));
    directory.note(called(None), Sign::Took);
    assert_eq!(directory.take()[&called(None)].last, Sign::Gone("HTTP 410".to_owned()));
    assert!(directory.take().is_empty(), "taken once");
}

#[tokio::test]
async fn who_wants_fresh_rows_gets_none_whose_reading_had_begun_before() {
    let directory = Arc::new(directory().0);
    let before = directory.begin_reading();
    let asking = tokio::task::LocalSet::new();
    let shared = Arc::clone(&directory);
    let waiter = asking.spawn_local(async move { shared.fresh().await });
    asking
        .run_until(async {
            directory.wanted().await;
            directory.put(before, vec![]);
            assert!(!waiter.is_finished(), "these rows are older than the question");
            directory.put(directory.begin_reading(), vec![endpoint(None, false)]);
            waiter.await.unwrap();
        })
        .await;
    assert!(directory.find("acme").is_some() && directory.find("other").is_none());
}
