//! Compresses pages of samples to DEFLATE (RFC 1951), about three times faster than a compressor that must look for
//! repetitions: a line mostly repeats the one before it, but for the values between its quotes and its number. On a
//! node of a few pods, a value and all behind it are in the family before, too.

use std::mem;

use memchr::memchr;

use crate::huffman::{CODE_LIMIT, Code, codes, lengths};

/// Ends a block; smaller symbols are bytes, larger ones lengths of repetitions.
const END: usize = 256;
/// Bytes, the end and lengths.
const LITERALS: usize = 286;
const DISTANCES: usize = 30;
/// The alphabet that lengths of codes are written in, themselves and runs of them.
const RUNS: usize = 19;
/// In this order their own lengths are written.
const RUN_ORDER: [usize; RUNS] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const RUN_CODE_LIMIT: usize = 7;

/// Of places that are remembered.
const PLACES_BITS: u32 = 12;

/// Shorter repetitions take about as many bits as their bytes.
const SHORTEST: usize = 4;
const LONGEST: usize = 258;
/// How far back a repetition may lie.
const FARTHEST: usize = 1 << 15;
/// Room beside the codes of the text: the block's header (19 lengths of 3 bits, 316 of at most 7), its end, and the eight
/// bytes of a `put`.
const ROOM: usize = 400;

/// A stream under construction, behind what was there before.
#[derive(Debug)]
pub struct Deflate {
    /// Written up to `at`.
    out: Vec<u8>,
    at: usize,
    /// Bits that do not fill a byte yet, the first lowest.
    bits: u64,
    /// How many these are; fewer than 8.
    pending: u32,
    places: Places,
    sequences: Vec<Sequence>,
}

/// So many bytes as they are, and then a repetition, whose length is 0 where there is none.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    literals: u32,
    length: u16,
    distance: u16,
}

impl Deflate {
    #[must_use]
    pub fn after(out: Vec<u8>) -> Self {
        let places = Places(Box::new([0; 1 << PLACES_BITS]));
        Self { at: out.len(), out, bits: 0, pending: 0, places, sequences: Vec::new() }
    }

    /// Adds text as a block of its own; from some ten kilobytes on its codes weigh nothing.
    pub fn write(&mut self, text: &[u8]) {
        let mut sequences = mem::take(&mut self.sequences);
        sequences.clear();
        find(text, &mut self.places, &mut sequences);
        let (literals, distances) = frequencies(text, &sequences);
        let (literals, distances) = (lengths(&literals, CODE_LIMIT), lengths(&distances, CODE_LIMIT));
        // A byte takes up to 15 bits; a repetition, of at least four bytes, up to 48.
        self.out.resize(self.at + ROOM + 2 * text.len(), 0);
        // A block that is not the last, of codes of its own.
        self.put(0b100, 3);
        self.put_lengths(&literals, &distances);
        self.put_sequences(text, &sequences, &codes(&literals), &codes(&distances));
        self.sequences = sequences;
    }

    /// All of it, whole bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.out.resize(self.at + ROOM, 0);
        // The last block, empty, of fixed codes; and zeros up to the next byte.
        self.put(0b011, 3 + 7);
        self.put(0, 7);
        self.out.truncate(self.at);
        // It may be kept for as long as a tick.
        self.out.shrink_to_fit();
        self.out
    }

    fn put_sequences(
        &mut self,
        text: &[u8],
        sequences: &[Sequence],
        literals: &[Code; LITERALS],
        distances: &[Code; DISTANCES],
    ) {
        let code = |byte: &u8| literals[usize::from(*byte)];
        let mut rest = text;
        for sequence in sequences {
            let (bytes, after) = rest.split_at(sequence.bytes());
            rest = &after[usize::from(sequence.length)..];
            // Three codes fit one step.
            let (threes, tail) = bytes.as_chunks::<3>();
            for three in threes {
                let [first, second, third] = three.each_ref().map(code);
                let both = first.length + second.length;
                let bits = u64::from(second.bits) << first.length | u64::from(third.bits) << both;
                self.put(u64::from(first.bits) | bits, both + third.length);
            }
            for byte in tail {
                self.put_code(code(byte));
            }
            if sequence.length > 0 {
                let (symbol, more, bits) = length_symbol(sequence.length);
                self.put_code(literals[symbol]);
                self.put(more.into(), bits);
                let (symbol, more, bits) = distance_symbol(sequence.distance);
                self.put_code(distances[symbol]);
                self.put(more.into(), bits);
            }
        }
        self.put_code(literals[END]);
    }

    /// The header of a block: the lengths of its codes (RFC 1951, section 3.2.7).
    fn put_lengths(&mut self, literals: &[u8; LITERALS], distances: &[u8; DISTANCES]) {
        // Absent ones at the end need not be said.
        let used = |lengths: &[u8]| lengths.iter().rposition(|length| *length > 0).map_or(0, |last| last + 1);
        let (literals, distances) = (&literals[..used(literals)], &distances[..used(distances)]);
        let runs = runs(&[literals, distances].concat());
        let mut counts = [0; RUNS];
        for (symbol, _, _) in &runs {
            counts[*symbol] += 1;
        }
        let run_lengths = lengths(&counts, RUN_CODE_LIMIT);
        let run_codes = codes(&run_lengths);
        let in_order = RUN_ORDER.map(|symbol| run_lengths[symbol]);
        let in_order = &in_order[..used(&in_order).max(4)];
        for (number, least, bits) in [(literals.len(), 257, 5), (distances.len(), 1, 5), (in_order.len(), 4, 4)] {
            self.put(u64::try_from(number - least).expect("at most 29"), bits);
        }
        for length in in_order {
            self.put((*length).into(), 3);
        }
        for (symbol, more, bits) in runs {
            self.put_code(run_codes[symbol]);
            self.put(more.into(), bits);
        }
    }

    fn put_code(&mut self, code: Code) {
        self.put(code.bits.into(), code.length);
    }

    /// At most 56 bits. There is room for eight bytes.
    #[inline]
    fn put(&mut self, bits: u64, count: u8) {
        self.bits |= bits << self.pending;
        self.pending += u32::from(count);
        self.out[self.at..self.at + 8].copy_from_slice(&self.bits.to_le_bytes());
        let whole = self.pending & !7;
        self.at += usize::try_from(whole / 8).expect("at most 7");
        self.bits >>= whole;
        self.pending &= 7;
    }
}

/// Where eight bytes were last seen among those that were looked for, by a hash of them.
#[derive(Debug)]
struct Places(Box<[usize; 1 << PLACES_BITS]>);

impl Places {
    /// Where the eight bytes that are now at `here` were before.
    fn replace(&mut self, text: &[u8], here: usize) -> Option<usize> {
        let at = |place: usize| text.get(place..)?.first_chunk::<8>();
        let bytes = at(here)?;
        // Fibonacci hashing: the highest bits of the product depend on all others.
        let hash = u64::from_le_bytes(*bytes).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES_BITS);
        let place = &mut self.0[usize::try_from(hash).expect("a few bits")];
        let earlier = mem::replace(place, here);
        (earlier < here && at(earlier) == Some(bytes)).then_some(earlier)
    }
}

impl Sequence {
    fn bytes(self) -> usize {
        usize::try_from(self.literals).expect("a part of a text in memory")
    }
}

/// What each line repeats of the one before. A line is taken from the end of the one before to its own.
fn find(text: &[u8], places: &mut Places, sequences: &mut Vec<Sequence>) {
    let mut literals = 0;
    let (mut before, mut start) = (0, 0);
    while start < text.len() {
        let end = memchr(b'\n', &text[start + 1..]).map_or(text.len(), |line| start + 1 + line);
        // Where we are in this line and in the one before.
        let (mut here, mut there) = (start, before);
        while here < end {
            let mut same = common(&text[here..end], &text[there..start]);
            let distance = here - there;
            there += same;
            while same >= SHORTEST && distance <= FARTHEST {
                // What is left of a long one is not left too short.
                let length = if same <= LONGEST { same } else { LONGEST.min(same - SHORTEST) };
                sequences.push(Sequence { literals, length: short(length), distance: short(distance) });
                (literals, here, same) = (0, here + length, same - length);
            }
            here += same;
            // Where the lines differ, an earlier one may go on as this does: of the same workload, in the family before.
            let earlier = places.replace(text, here);
            if let Some(earlier) = earlier.filter(|earlier| *earlier < start && here - earlier <= FARTHEST) {
                literals += literal(same);
                there = earlier;
                continue;
            }
            // What differs goes to the next quote, or to the end.
            let other = memchr(b'"', &text[there..start]);
            there += other.unwrap_or_default();
            let quote = other.and_then(|_| memchr(b'"', &text[here..end]));
            let differs = quote.unwrap_or(end - here);
            literals += literal(same + differs);
            here += differs;
        }
        (before, start) = (start, end);
    }
    sequences.push(Sequence { literals, length: 0, distance: 0 });
}

/// So many more bytes as they are.
fn literal(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a line is no gigabytes")
}

/// A length, or a distance, of a repetition.
fn short(number: usize) -> u16 {
    u16::try_from(number).expect("it is in the window")
}

/// How many bytes both begin with.
fn common(one: &[u8], other: &[u8]) -> usize {
    let both = one.len().min(other.len());
    let (one, other) = (&one[..both], &other[..both]);
    let (words, _) = one.as_chunks::<8>();
    let pairs = words.iter().zip(other.as_chunks::<8>().0);
    let mut same = 0;
    for (one, other) in pairs {
        let differs = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other);
        if differs != 0 {
            return same + usize::try_from(differs.trailing_zeros() / 8).expect("at most 7");
        }
        same += 8;
    }
    same + one[same..].iter().zip(&other[same..]).take_while(|(one, other)| one == other).count()
}

/// How often each symbol comes. At least two of each alphabet do, as a code of one symbol has no bits.
fn frequencies(text: &[u8], sequences: &[Sequence]) -> ([u32; LITERALS], [u32; DISTANCES]) {
    // Several counters, since a byte like the one before would wait for its count.
    let mut bytes = [[0_u32; 256]; 4];
    let (mut literals, mut distances) = ([0; LITERALS], [0; DISTANCES]);
    let mut rest = text;
    for sequence in sequences {
        let (run, after) = rest.split_at(sequence.bytes());
        rest = &after[usize::from(sequence.length)..];
        for four in run.chunks(4) {
            for (byte, counts) in four.iter().zip(&mut bytes) {
                counts[usize::from(*byte)] += 1;
            }
        }
        if sequence.length > 0 {
            literals[length_symbol(sequence.length).0] += 1;
            distances[distance_symbol(sequence.distance).0] += 1;
        }
    }
    for (byte, count) in literals[..END].iter_mut().enumerate() {
        *count = bytes.iter().map(|counts| counts[byte]).sum();
    }
    literals[END] = 1;
    literals[0] = literals[0].max(1);
    distances[0] = distances[0].max(1);
    distances[1] = distances[1].max(1);
    (literals, distances)
}

/// Symbol of a length from 3 to 258, and what is said beside it in so many bits.
fn length_symbol(length: u16) -> (usize, u16, u8) {
    if usize::from(length) == LONGEST {
        return (LITERALS - 1, 0, 0);
    }
    let (step, more, bits) = logarithmic(length - 3, 2);
    (END + 1 + step, more, bits)
}

/// Symbol of a distance from 1, and what is said beside it in so many bits.
fn distance_symbol(distance: u16) -> (usize, u16, u8) {
    logarithmic(distance - 1, 1)
}

/// Steps that double in width: 2^`fine` of each width, and the narrowest twice.
fn logarithmic(number: u16, fine: u8) -> (usize, u16, u8) {
    let width = u8::try_from(number.max(1).ilog2()).expect("at most 15").saturating_sub(fine);
    let step = (u16::from(width) << fine) + (number >> width);
    (step.into(), number & ((1 << width) - 1), width)
}

/// Symbols that say these lengths of codes, each with what is said beside it in so many bits.
fn runs(lengths: &[u8]) -> Vec<(usize, u8, u8)> {
    let mut runs = Vec::new();
    for run in lengths.chunk_by(|one, next| one == next) {
        let length = usize::from(run[0]);
        let mut left = run.len();
        if length > 0 {
            runs.push((length, 0, 0));
            left -= 1;
        }
        // Repeats of the length before, or of zero.
        let repeats: &[(usize, usize, usize, u8)] =
            if length > 0 { &[(16, 3, 6, 2)] } else { &[(18, 11, 138, 7), (17, 3, 10, 3)] };
        for &(symbol, least, most, bits) in repeats {
            while left >= least {
                let now = left.min(most);
                runs.push((symbol, u8::try_from(now - least).expect("at most 127"), bits));
                left -= now;
            }
        }
        runs.extend((0..left).map(|_| (length, 0, 0)));
    }
    runs
}

#[cfg(test)]
mod tests;
