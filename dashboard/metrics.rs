//! The metrics in Prometheus' text format. Labels are of bounded sets: registered downstreams, states, outcomes; a name
//! that only an effect's row uses never becomes one.

use std::{collections::BTreeMap, fmt};

use aftercommit::{
    clock::Timestamp,
    engine::{DownstreamFigures, Engine, Report, Timings},
    error::StoreError,
    guard::RequestCounts,
    state::State,
    store::{Breaker, Connections, Count, Database, DownstreamInfo},
};
pub(crate) use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Registry,
};

/// The one label of all effects whose downstream nobody registered: no name can be like it.
const UNREGISTERED: &str = "(unregistered)";

/// What only the database knows.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Effects by downstream and state; every registered downstream has every state.
    effects: BTreeMap<(String, State), u64>,
    /// Seconds since the oldest due effect became due; 0 where none is due.
    oldest_due: BTreeMap<String, f64>,
    /// Whether a registered downstream's origin answers.
    breakers: BTreeMap<String, Breaker>,
    /// Whether a registered downstream is paused until somebody resumes it.
    paused: BTreeMap<String, bool>,
}

impl Gauges {
    /// Asks the database.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when it does not answer.
    pub(crate) async fn read(database: &dyn Database) -> Result<Self, StoreError> {
        let downstreams = database.downstreams().await?;
        let counts = database.counts().await?;
        let now = database.now().await?;
        Ok(Self::of(&downstreams, &counts, now))
    }

    fn of(downstreams: &[DownstreamInfo], counts: &[Count], now: Timestamp) -> Self {
        let mut gauges = Self::default();
        let label = |name: &str| {
            let registered = downstreams.iter().any(|info| info.name == name && info.kind.is_some());
            if registered { name.to_owned() } else { UNREGISTERED.to_owned() }
        };
        for info in downstreams {
            let name = label(&info.name);
            for state in State::ALL {
                gauges.effects.entry((name.clone(), state)).or_default();
            }
            if info.kind.is_some() {
                gauges.breakers.insert(name.clone(), info.breaker);
                gauges.paused.insert(name.clone(), info.paused.is_some());
            }
            let age = info.oldest_due_at.map_or(0.0, |due| now.since(due).as_secs_f64());
            let oldest = gauges.oldest_due.entry(name).or_default();
            *oldest = oldest.max(age);
        }
        for count in counts {
            *gauges.effects.entry((label(&count.downstream), count.state)).or_default() += count.effects;
        }
        gauges
    }
}

/// Everything that is known, as text.
///
/// # Errors
///
/// Never, as long as text can be written.
pub(crate) fn text(
    gauges: Option<&Gauges>,
    engine: Option<&Engine>,
    pool: Option<Connections>,
    requests: Option<RequestCounts>,
) -> Result<String, fmt::Error> {
    let snapshot = Snapshot {
        effects: gauges.map(|gauges| gauges.effects.clone()).unwrap_or_default(),
        oldest_due: gauges.map(|gauges| gauges.oldest_due.clone()).unwrap_or_default(),
        breakers: gauges.map(|gauges| gauges.breakers.clone()).unwrap_or_default(),
        paused: gauges.map(|gauges| gauges.paused.clone()).unwrap_or_default(),
        worker: engine.map(|engine| (engine.report(), engine.figures())),
        pool,
        requests,
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

/// One scrape.
#[derive(Debug)]
struct Snapshot {
    effects: BTreeMap<(String, State), u64>,
    oldest_due: BTreeMap<String, f64>,
    breakers: BTreeMap<String, Breaker>,
    paused: BTreeMap<String, bool>,
    worker: Option<(Report, Vec<DownstreamFigures>)>,
    pool: Option<Connections>,
    requests: Option<RequestCounts>,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let build = "The version of this program";
        let mut info = encoder.encode_descriptor("aftercommit_build", build, None, MetricType::Info)?;
        info.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        self.of_the_database(&mut encoder)?;
        if let Some((report, figures)) = &self.worker {
            of_the_worker(&mut encoder, *report)?;
            of_attempts(&mut encoder, figures)?;
        }
        if let Some(requests) = self.requests {
            of_requests(&mut encoder, requests)?;
        }
        Ok(())
    }
}

impl Snapshot {
    fn of_the_database(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut effects = gauge(encoder, "aftercommit_effects", "Effects by state; at rest exact")?;
        for ((downstream, state), n) in &self.effects {
            let labels = [("state", state.as_str()), ("downstream", downstream.as_str())];
            effects.encode_family(&labels)?.encode_gauge(n)?;
        }
        let help = "Effects that may or may not have been applied, and wait for a probe or a person";
        let mut doubt = gauge(encoder, "aftercommit_effects_in_doubt", help)?;
        for ((downstream, _), n) in self.effects.iter().filter(|((_, state), _)| *state == State::InDoubt) {
            doubt.encode_family(&[("downstream", downstream.as_str())])?.encode_gauge(n)?;
        }
        let help = "How long ago the oldest effect that is due became due; 0 when none is";
        let mut oldest = gauge(encoder, "aftercommit_oldest_due_age_seconds", help)?;
        for (downstream, age) in &self.oldest_due {
            oldest.encode_family(&[("downstream", downstream.as_str())])?.encode_gauge(age)?;
        }
        let help =
            "Whether calls may go to the downstream's origin: 0 they may, 1 one may, to find out, 2 none may";
        let mut breakers = gauge(encoder, "aftercommit_breaker_state", help)?;
        for (downstream, breaker) in &self.breakers {
            let state: u64 = match breaker {
                Breaker::Closed => 0,
                Breaker::HalfOpen => 1,
                Breaker::Open => 2,
            };
            breakers.encode_family(&[("downstream", downstream.as_str())])?.encode_gauge(&state)?;
        }
        let help = "Whether the downstream is paused, by a person or because it refused our credentials: nothing is sent until it is resumed";
        let mut paused = gauge(encoder, "aftercommit_downstream_paused", help)?;
        for (downstream, is_paused) in &self.paused {
            paused
                .encode_family(&[("downstream", downstream.as_str())])?
                .encode_gauge(&u64::from(*is_paused))?;
        }
        if let Some(pool) = self.pool {
            let help = "Connections to the database in this process's pool";
            let mut connections = gauge(encoder, "aftercommit_db_pool_connections", help)?;
            connections.encode_family(&[("state", "idle")])?.encode_gauge(&pool.idle)?;
            connections.encode_family(&[("state", "used")])?.encode_gauge(&pool.used)?;
        }
        Ok(())
    }
}

fn of_the_worker(encoder: &mut DescriptorEncoder<'_>, report: Report) -> fmt::Result {
    let help = "Leases that ended without an outcome, as swept by this worker";
    count(&mut counter(encoder, "aftercommit_lease_expired", help)?, report.leases_ended)?;
    let help = "Writes of this worker that were refused because its lease was lost";
    count(&mut counter(encoder, "aftercommit_fenced_writes", help)?, report.fenced)
}

fn of_attempts(encoder: &mut DescriptorEncoder<'_>, figures: &[DownstreamFigures]) -> fmt::Result {
    let help = "Attempts of this worker by what they showed";
    let mut attempts = counter(encoder, "aftercommit_attempts", help)?;
    for of in figures {
        for (verdict, n) in &of.attempts {
            let labels = [("downstream", &*of.downstream), ("outcome", verdict.as_str())];
            count(&mut attempts.encode_family(&labels)?, *n)?;
        }
    }
    let help = "Answers that a downstream marked as the replay of a stored one";
    per_downstream(counter(encoder, "aftercommit_replays", help)?, figures, |of| of.replays)?;
    let help = "Late answers that say applied against a person's word or for a superseded effect";
    let duplicates = counter(encoder, "aftercommit_possible_duplicates", help)?;
    per_downstream(duplicates, figures, |of| of.possible_duplicates)?;
    let help = "How long attempts took";
    histogram(encoder, ("aftercommit_attempt_duration_seconds", help), figures, |of| &of.attempt)?;
    let help = "From the effect's row to its success, a wait that the application asked for included";
    histogram(encoder, ("aftercommit_delivery_lag_seconds", help), figures, |of| &of.lag)
}

fn of_requests(encoder: &mut DescriptorEncoder<'_>, counts: RequestCounts) -> fmt::Result {
    let help = "Guarded requests of this process by what was known of their keys";
    let mut requests = counter(encoder, "aftercommit_requests", help)?;
    for (outcome, n) in [
        ("first", counts.first),
        ("replayed", counts.replayed),
        ("in_progress", counts.in_progress),
        ("mismatch", counts.mismatch),
    ] {
        count(&mut requests.encode_family(&[("outcome", outcome)])?, n)?;
    }
    Ok(())
}

fn per_downstream(
    mut metric: MetricEncoder<'_>,
    figures: &[DownstreamFigures],
    of: impl Fn(&DownstreamFigures) -> u64,
) -> fmt::Result {
    for figures in figures {
        count(&mut metric.encode_family(&[("downstream", &*figures.downstream)])?, of(figures))?;
    }
    Ok(())
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    figures: &[DownstreamFigures],
    of: impl Fn(&DownstreamFigures) -> &Timings,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for figures in figures {
        let timings = of(figures);
        metric.encode_family(&[("downstream", &*figures.downstream)])?.encode_histogram::<NoLabelSet>(
            timings.sum,
            timings.count,
            &timings.buckets,
            None,
        )?;
    }
    Ok(())
}

fn gauge<'s>(
    encoder: &'s mut DescriptorEncoder<'_>,
    name: &'s str,
    help: &str,
) -> Result<MetricEncoder<'s>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

/// The format adds `_total` to the name.
fn counter<'s>(
    encoder: &'s mut DescriptorEncoder<'_>,
    name: &'s str,
    help: &str,
) -> Result<MetricEncoder<'s>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

fn count(metric: &mut MetricEncoder<'_>, n: u64) -> fmt::Result {
    metric.encode_counter(&n, None::<&Exemplar<NoLabelSet, f64>>)
}

#[cfg(test)]
mod tests {
    use aftercommit::store::PausedBy;

    use super::*;

    fn info(name: &str, kind: Option<&str>, due: Option<i64>) -> DownstreamInfo {
        DownstreamInfo {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            oldest_due_at: due.map(Timestamp::from_micros),
            ..DownstreamInfo::default()
        }
    }

    #[test]
    fn names_that_only_effects_use_share_one_label() {
        let downstreams = [
            info("payments", Some("http"), Some(1_000_000)),
            info("typo-1", None, Some(2_000_000)),
            info("typo-2", None, Some(9_000_000)),
        ];
        let counts = ["typo-1", "typo-2", "typo-3", "payments"].map(|name| Count {
            downstream: name.to_owned(),
            state: State::Ready,
            effects: 2,
        });
        let gauges = Gauges::of(&downstreams, &counts, Timestamp::from_micros(11_000_000));
        let text = text(Some(&gauges), None, None, None).unwrap();
        assert!(!text.contains("typo"), "{text}");
        for line in [
            "aftercommit_effects{state=\"ready\",downstream=\"(unregistered)\"} 6",
            "aftercommit_effects{state=\"ready\",downstream=\"payments\"} 2",
            "aftercommit_effects{state=\"in_doubt\",downstream=\"payments\"} 0",
            "aftercommit_effects_in_doubt{downstream=\"payments\"} 0",
            "aftercommit_oldest_due_age_seconds{downstream=\"payments\"} 10.0",
            "aftercommit_oldest_due_age_seconds{downstream=\"(unregistered)\"} 9.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_pause_that_somebody_must_end_is_a_metric_of_its_own() {
        let by = PausedBy { at: Timestamp::from_micros(0), who: "worker w1".to_owned(), reason: None };
        let downstreams = [
            DownstreamInfo { paused: Some(by.clone()), ..info("payments", Some("http"), None) },
            // Its origin's Retry-After ends by itself.
            DownstreamInfo {
                paused_until: Some(Timestamp::from_micros(9)),
                ..info("mail", Some("smtp"), None)
            },
            DownstreamInfo { paused: Some(by), ..info("typo", None, None) },
        ];
        let gauges = Gauges::of(&downstreams, &[], Timestamp::from_micros(0));
        let text = text(Some(&gauges), None, None, None).unwrap();
        let told: Vec<_> =
            text.lines().filter(|line| line.starts_with("aftercommit_downstream_paused")).collect();
        assert_eq!(
            told,
            [
                "aftercommit_downstream_paused{downstream=\"mail\"} 0",
                "aftercommit_downstream_paused{downstream=\"payments\"} 1"
            ]
        );
    }

    #[test]
    fn without_a_database_the_build_is_told() {
        let text = text(None, None, None, None).unwrap();
        assert!(text.contains("aftercommit_build_info{version="), "{text}");
    }
}
