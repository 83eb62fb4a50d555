//! A client that meets every kind of answer, at a pace that does not wait.

use std::sync::Mutex;

use super::*;
use crate::clock::{Boot, ManualClock};

/// Moves on by each pause, and writes it down.
struct Paced {
    clock: ManualClock,
    pauses: Mutex<Vec<Duration>>,
    seed: u64,
}

impl Paced {
    fn seeded(seed: u64) -> Self {
        // 2026-11-29T12:00:00Z.
        let at = Timestamp::from_micros(1_795_953_600_000_000);
        Self { clock: ManualClock::at(at), pauses: Mutex::default(), seed }
    }

    fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().unwrap().clone()
    }
}

impl Clock for Paced {
    fn boot(&self) -> Boot {
        self.clock.boot()
    }

    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }
}

impl Pace for Paced {
    async fn sleep(&self, pause: Duration) {
        self.pauses.lock().unwrap().push(pause);
        self.clock.advance(pause);
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}

fn reply(status: u16, retry_after: Option<&str>) -> Result<Reply<u16>, &'static str> {
    let retry_after = retry_after.map(str::to_owned);
    Ok(Reply { status, retry_after, date: None, replayed: false, response: status })
}

type Said = Result<Reply<u16>, &'static str>;

async fn tried(
    pace: &Paced,
    retry: &Retry,
    answers: &[Said],
) -> (Result<u16, GaveUp<u16, &'static str>>, Vec<String>) {
    let key = IdempotencyKey::parse("order-17").unwrap();
    let mut keys = Vec::new();
    let ended = send_at(pace, retry, &key, |key| {
        let answer = answers[keys.len().min(answers.len() - 1)].clone();
        keys.push(key.as_str().to_owned());
        std::future::ready(answer)
    })
    .await;
    (ended, keys)
}

#[tokio::test]
async fn one_key_goes_with_every_try_until_the_answer_is_final() {
    let pace = Paced::seeded(1);
    let answers = [reply(500, None), Err("reset"), reply(409, Some("1")), reply(425, None), reply(201, None)];
    let (ended, keys) = tried(&pace, &Retry::default(), &answers).await;
    assert_eq!((ended, keys), (Ok(201), vec!["order-17".to_owned(); 5]));
    assert!(pace.pauses()[2] >= Duration::from_secs(1), "409 asked for a second: {:?}", pace.pauses());
}

#[tokio::test]
async fn what_another_try_cannot_change_ends_it() {
    for status in [200, 204, 303, 400, 401, 403, 404, 413, 422] {
        let (ended, keys) = tried(&Paced::seeded(2), &Retry::default(), &[reply(status, Some("5"))]).await;
        assert_eq!((ended, keys.len()), (Ok(status), 1));
    }
    // A conflict of the application's own, which the guard has not caused.
    let (ended, keys) = tried(&Paced::seeded(2), &Retry::default(), &[reply(409, None)]).await;
    assert_eq!((ended, keys.len()), (Ok(409), 1));
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 599] {
        let answers = [reply(status, Some("0")), reply(200, None)];
        let (ended, keys) = tried(&Paced::seeded(3), &Retry::default(), &answers).await;
        assert_eq!((ended, keys.len()), (Ok(200), 2), "{status}");
    }
}

#[tokio::test]
async fn a_replay_is_final_whatever_its_status() {
    for status in [409, 429, 500, 503] {
        let replay = reply(status, Some("1")).map(|reply| Reply { replayed: true, ..reply });
        let (ended, keys) = tried(&Paced::seeded(7), &Retry::default(), &[replay]).await;
        assert_eq!((ended, keys.len()), (Ok(status), 1));
    }
}

#[tokio::test]
async fn a_client_that_gives_up_says_how_the_last_try_ended() {
    let retry = Retry { deadline: Duration::from_secs(10), ..Retry::default() };
    let pace = Paced::seeded(4);
    let (ended, keys) = tried(&pace, &retry, &[reply(503, None)]).await;
    let gave_up = ended.unwrap_err();
    assert_eq!((gave_up.last, gave_up.tries as usize), (Last::Answer(503), keys.len()));
    assert!(pace.pauses().iter().sum::<Duration>() <= retry.deadline);
    let (ended, _) = tried(&Paced::seeded(5), &retry, &[Err("refused")]).await;
    assert_eq!(ended.unwrap_err().last, Last::Lost("refused"));
    // What the server asks for lies behind the deadline: there is nothing to wait for.
    let pace = Paced::seeded(6);
    let (ended, keys) = tried(&pace, &retry, &[reply(429, Some("3600"))]).await;
    assert_eq!((ended.unwrap_err().tries, keys.len(), pace.pauses()), (1, 1, Vec::new()));
}

#[tokio::test]
async fn pauses_are_drawn_evenly_from_below_a_ceiling_that_doubles_to_a_cap() {
    let retry = Retry {
        initial: Duration::from_millis(100),
        max: Duration::from_millis(800),
        deadline: Duration::from_secs(3600),
    };
    let (mut sums, rounds) = ([Duration::ZERO; 6], 400);
    for seed in 0..rounds {
        let pace = Paced::seeded(seed);
        let mut answers = vec![Err("reset"); 6];
        answers.push(reply(200, None));
        let (ended, _) = tried(&pace, &retry, &answers).await;
        assert_eq!(ended, Ok(200));
        for (sum, pause) in sums.iter_mut().zip(pace.pauses()) {
            *sum += pause;
        }
    }
    for (sum, ceiling) in sums.iter().zip([100, 200, 400, 800, 800, 800]) {
        let mean = sum.as_secs_f64() * 1000.0 / f64::from(u32::try_from(rounds).unwrap());
        let half = f64::from(ceiling) / 2.0;
        assert!((mean - half).abs() < half * 0.15, "a mean of {mean} ms below {ceiling} ms");
    }
    assert_eq!(retry.ceiling(u32::MAX), retry.max);
}

#[test]
fn only_whole_seconds_and_dates_to_come_ask_for_time() {
    let wall = Timestamp::from_micros(1_795_953_600_000_000);
    for (value, date, expected) in [
        ("0", None, Some(0)),
        (" 10 ", None, Some(10)),
        ("-5", None, None),
        ("1.5", None, None),
        ("soon", None, None),
        ("", None, None),
        ("Sun, 29 Nov 2026 12:02:00 GMT", None, Some(120)),
        ("Sun, 29 Nov 2026 11:00:00 GMT", None, None),
        ("Sun, 29 Nov 2026 13:02:00 GMT", Some("Sun, 29 Nov 2026 13:00:00 GMT"), Some(120)),
        ("Sun, 29 Nov 2026 12:02:00 GMT", Some("junk"), Some(120)),
    ] {
        let reply = Reply {
            status: 503,
            retry_after: Some(value.to_owned()),
            date: date.map(str::to_owned),
            replayed: false,
            response: (),
        };
        assert_eq!(asked(&reply, wall), expected.map(Duration::from_secs), "{value:?} {date:?}");
    }
}
