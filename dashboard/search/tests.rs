use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000_000);

fn read(text: &str) -> Search {
    let search = Search::parse(text);
    assert_eq!(search.problems, Vec::<String>::new(), "{text}");
    search
}

fn problem(text: &str) -> String {
    let problems = Search::parse(text).problems;
    assert_eq!(problems.len(), 1, "{text}: {problems:?}");
    problems.concat()
}

fn filter(text: &str) -> Filter {
    read(text).filter(NOW)
}

#[test]
fn every_term_becomes_a_part_of_the_filter() {
    let found = filter(
        "state:failed,in_doubt downstream:payments operation:charge key:order-1 metadata.order:A-17 error:\"card declined\" \
         age:>1h created:>1970-01-02",
    );
    assert_eq!(found.states, [State::Failed, State::InDoubt]);
    assert_eq!(found.downstream.as_deref(), Some("payments"));
    assert_eq!(found.operation.as_deref(), Some("charge"));
    assert_eq!(found.key.as_deref(), Some("order-1"));
    assert_eq!(found.metadata.as_deref(), Some(r#"{"order":"A-17"}"#));
    assert_eq!(found.error.as_deref(), Some("card declined"));
    assert_eq!(found.created_before, Some(NOW.minus(Duration::from_secs(3_600))));
    assert_eq!(found.created_after, Some(Timestamp::from_micros(86_400_000_000)));
}

#[test]
fn a_search_written_out_reads_as_the_same_search() {
    for text in [
        "",
        "state:failed,in_doubt",
        "downstream:payments operation:charge",
        "key:order-A-17/charge",
        "key:\"with space\"",
        "metadata.order:A-17 metadata.customer.id:7",
        "metadata.order:\"17\"",
        "metadata.\"a.b\".\"c:d\":\"e f\"",
        "error:\"said \\\"no\\\" at C:\\\\x\"",
        "age:>90s age:<2d",
        "created:>2026-01-31T12:00:00.000000Z created:<2026-02-01T00:00:00.000000Z",
        "id:17,18",
        "state:failed cause:0123456789abcdef0123456789abcdef",
        "state:failed cause:0123456789abcdef0123456789abcdef-24h",
        "order-17",
        "\"a b\"",
        "\"order:17\"",
    ] {
        assert_eq!(read(text).to_string(), text);
    }
}

#[test]
fn whatever_a_term_holds_survives_being_written_out() {
    for value in [
        "a b",
        "\"",
        "\\",
        "\\\"",
        "x:y",
        "state:failed",
        "\u{202e}x",
        "ü",
        "a\nb",
        "'",
        "<script>",
        "metadata.x:1",
    ] {
        for term in [
            Term::Downstream(value.to_owned()),
            Term::Key(value.to_owned()),
            Term::Error(value.to_owned()),
            Term::Bare(value.to_owned()),
            Term::Metadata(Reference {
                path: vec![value.to_owned(), "x".to_owned()],
                value: value.to_owned(),
                quoted: true,
            }),
        ] {
            assert_eq!(read(&term.to_string()).terms, std::slice::from_ref(&term), "{term}");
        }
    }
}

#[test]
fn a_bare_word_looks_one_effect_up() {
    for (text, word) in [
        ("17", "17"),
        (" order-A-17/charge ", "order-A-17/charge"),
        ("order:17", "order:17"),
        ("a.b:c", "a.b:c"),
    ] {
        assert_eq!(read(text).bare(), Some(word), "{text}");
    }
    assert_eq!(read("key:17").bare(), None);
    assert!(problem("state:failed A-17").contains("stands alone"));
}

#[test]
fn a_reference_that_looks_like_a_number_is_looked_for_as_text_first() {
    let read_as = |text: &str| {
        let readings = read(text).readings();
        let metadata = |search: &Search| (search.to_string(), search.filter(NOW).metadata.unwrap());
        readings.iter().map(metadata).collect::<Vec<_>>()
    };
    let both = |written: &str, metadata: &str| (written.to_owned(), metadata.to_owned());
    assert_eq!(
        read_as("metadata.order:17"),
        [both("metadata.order:\"17\"", r#"{"order":"17"}"#), both("metadata.order:17", r#"{"order":17}"#)]
    );
    assert_eq!(read_as("metadata.order:\"17\"").len(), 1, "it is decided");
    assert_eq!(read_as("metadata.order:A-17").len(), 1);
    let deep = filter("metadata.a.b:c metadata.d:e");
    assert_eq!(deep.metadata.as_deref(), Some(r#"{"a":{"b":"c"},"d":"e"}"#));
}

#[test]
fn big_numbers_in_references_keep_their_digits() {
    let readings = read("metadata.n:12345678901234567890123").readings();
    let metadata: Vec<_> = readings.iter().filter_map(|search| search.filter(NOW).metadata).collect();
    assert_eq!(metadata, [r#"{"n":"12345678901234567890123"}"#, r#"{"n":12345678901234567890123}"#]);
}

#[test]
fn what_cannot_be_read_is_named() {
    for (text, words) in [
        ("state:faild", "\"faild\" is no state"),
        ("state:", "says nothing"),
        ("state:,", "says nothing"),
        ("cause:declined", "failures page"),
        ("age:1h", "age:>1h"),
        ("age:>1y", "age:>1h"),
        ("created:2026-01-31", "created:>2026"),
        ("created:>2026-02-31", "no time"),
        ("id:x", "no number"),
        ("metadata:x", "metadata.order:A-17"),
        ("downstream:a downstream:b", "twice"),
        ("metadata.a:1 metadata.a.b:2", "twice"),
        ("error:\"open", "not closed"),
        ("one two", "looked up"),
    ] {
        let problems = Search::parse(text).problems.join("; ");
        assert!(problems.contains(words), "{text}: {problems}");
    }
    assert!(!Search::parse(&"x".repeat(5_000)).problems.is_empty());
}

#[test]
fn chips_take_one_term_away() {
    let search = read("state:failed downstream:mail age:>1h");
    assert_eq!(search.without(1).to_string(), "state:failed age:>1h");
    assert!(read("state:failed downstream:mail").is_counted() && !search.is_counted());
}

#[test]
fn no_text_takes_the_reader_down() {
    for text in [
        "\"",
        "\\",
        ":",
        "::",
        ".",
        "metadata.",
        "metadata.:",
        "metadata.\"",
        ":\"",
        "a\"b\"c:d",
        "\u{2028}:\u{a0}",
        "\"\"",
        "key:\"\"",
    ] {
        let search = Search::parse(text);
        let again = Search::parse(&search.to_string());
        if search.problems.is_empty() {
            assert_eq!(again.terms, search.terms, "{text}");
        }
    }
}
