//! What flate2 reads back, which knows nothing of this code, is what was written.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use proptest::prelude::*;

use super::*;

fn deflated(texts: &[&[u8]]) -> Vec<u8> {
    let mut deflate = Deflate::after(b"before".to_vec());
    for text in texts {
        deflate.write(text);
    }
    deflate.finish()
}

fn inflated(coded: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    DeflateDecoder::new(coded.strip_prefix(b"before").unwrap()).read_to_end(&mut text).unwrap();
    text
}

#[track_caller]
fn assert_kept(text: &[u8]) {
    assert!(inflated(&deflated(&[text])) == text, "{}", String::from_utf8_lossy(text));
}

/// A family of so many containers, whose ids have no pattern.
fn family(containers: u64) -> String {
    let mut random: u64 = 1;
    let mut text = String::new();
    for container in 0..containers {
        text.push_str("kepler_container_cpu_joules_total{container_id=\"");
        for _ in 0..4 {
            // Knuth's MMIX.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            write!(text, "{:016x}", random ^ random >> 32).unwrap();
        }
        writeln!(text, "\",container_name=\"main\",pod_namespace=\"shop\"}} {container}.{:06}", random >> 45).unwrap();
    }
    text
}

#[test]
fn a_page_takes_fewer_bytes_than_at_the_fast_level_of_a_general_compressor() {
    let page = family(3_000);
    let ours = deflated(&[page.as_bytes()]);
    assert!(inflated(&ours) == page.as_bytes());
    let mut general = DeflateEncoder::new(Vec::new(), Compression::fast());
    general.write_all(page.as_bytes()).unwrap();
    let general = general.finish().unwrap();
    assert!(ours.len() < general.len(), "{} and {} bytes", ours.len(), general.len());
}

#[test]
fn ids_of_a_few_containers_are_written_once() {
    let joules = family(50);
    let watts = joules.replace("joules_total", "watts");
    let one = deflated(&[joules.as_bytes()]);
    let both = deflated(&[joules.as_bytes(), (joules.clone() + &watts).as_bytes()]);
    assert!(inflated(&both) == (joules.clone() + &joules + &watts).as_bytes());
    // An id alone is 32 bytes.
    assert!(both.len() < 2 * one.len() + 50 * 16, "{} and {} bytes", one.len(), both.len());
}

#[test]
fn text_comes_in_any_pieces() {
    let page = family(20);
    let (head, tail) = page.as_bytes().split_at(777);
    assert!(inflated(&deflated(&[head, b"", tail])) == page.as_bytes());
    assert!(inflated(&deflated(&[])).is_empty());
}

#[test]
fn repetitions_of_every_length_are_kept() {
    let mut all = String::new();
    for length in 0..1100 {
        let line = "x".repeat(length);
        let text = format!("{line}\n{line}\n{line}\"{line}\n");
        assert_kept(text.as_bytes());
        all.push_str(&text);
    }
    assert_kept(all.as_bytes());
}

#[test]
fn a_repetition_is_one_where_it_can_be_and_is_found_as_far_back_as_it_may_lie() {
    let sequences = |text: &str| {
        let mut sequences = Vec::new();
        find(text.as_bytes(), &mut Places(Box::new([0; 1 << PLACES_BITS])), &mut sequences);
        sequences.iter().map(|sequence| (sequence.length, sequence.distance)).collect::<Vec<_>>()
    };
    // The third line repeats the second from its line feed on; the last of all has no repetition.
    let lines = |length: usize| format!("\n{0}\n{0}\n{0}", "y".repeat(length));
    assert_eq!(sequences(&lines(257)), [(258, 258), (258, 258), (0, 0)]);
    assert_eq!(sequences(&lines(258)), [(255, 259), (4, 259), (255, 259), (4, 259), (0, 0)]);
    let far = |length: usize| sequences(&lines(length)).into_iter().map(|(_, distance)| distance).max().unwrap();
    assert_eq!((far(32_767), far(32_768)), (32_768, 0));
}

#[test]
fn lines_at_every_distance_are_kept() {
    for distance in (1..300).chain(32_700..32_800).chain([100_000]) {
        let line = "0123456789abcdef".repeat(distance / 16 + 1);
        assert_kept(format!("{0}\n{0}\n{0}\n", &line[..distance]).as_bytes());
    }
}

#[test]
fn lines_without_quotes_or_with_more_than_the_one_before_are_kept() {
    for text in
        ["", "\n", "\n\n\n", "\"", "a \"b\" \"c\"\na b\na \"b\"\na \"b\" \"c\" \"d\" e\n\"\"\"\n", "# EOF\n", "a 1"]
    {
        assert_kept(text.as_bytes());
    }
}

#[test]
fn codes_of_the_greatest_length_are_kept() {
    // Fibonacci's numbers make the deepest tree; its two ones are the end and the byte that is said to come in each text.
    let (mut text, mut number, mut next) = (Vec::new(), 2, 3);
    let mut counts = [0; 20];
    (counts[0], counts[1]) = (1, 1);
    for (byte, count) in (b'A'..).zip(&mut counts[2..]) {
        text.extend((0..number).map(|_| byte));
        *count = number;
        (number, next) = (next, number + next);
    }
    assert_eq!(lengths(&counts, 20).iter().max(), Some(&19), "deeper than a code may be long");
    assert_kept(&text);
}

#[test]
fn every_byte_is_kept() {
    assert_kept(&(0..=255).cycle().take(100_000).collect::<Vec<u8>>());
}

proptest! {
    #[test]
    fn any_bytes_are_kept(text in proptest::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert!(inflated(&deflated(&[&text])) == text);
    }

    #[test]
    fn any_lines_are_kept(lines in proptest::collection::vec("[ab\"]{0,12}", 0..200)) {
        let text = lines.join("\n");
        prop_assert!(inflated(&deflated(&[text.as_bytes()])) == text.as_bytes());
    }
}
