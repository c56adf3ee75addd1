//! The Huffman codes of a block of DEFLATE (RFC 1951, section 3.2.2). Pure.

/// How a symbol is written: its bits, the first of them lowest, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    pub bits: u16,
    pub length: u8,
}

/// The longest code that DEFLATE has room for.
pub const CODE_LIMIT: usize = 15;

/// Huffman's lengths of codes for symbols that come this often, where they would pass `limit` nearly the best ones; 0 for
/// a symbol that never comes. At least two come, and no more than 2^`limit`.
#[must_use]
pub fn lengths<const SYMBOLS: usize>(counts: &[u32; SYMBOLS], limit: usize) -> [u8; SYMBOLS] {
    let mut leaves: Vec<(u32, usize)> =
        counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(symbol, count)| (*count, symbol)).collect();
    leaves.sort_unstable();
    let mut numbers = numbers_by_depth(&leaves);
    let beyond = numbers.split_off(numbers.len().min(limit + 1));
    numbers.resize(limit + 1, 0);
    numbers[limit] += beyond.iter().sum::<u32>();
    // Leaves that were pulled up take more than there is. Each step hangs one of them beside a leaf that goes down.
    let mut taken: u32 = numbers.iter().enumerate().map(|(length, number)| number << (limit - length)).sum();
    while taken > 1 << limit {
        let shorter = (1..limit).rev().find(|length| numbers[*length] > 0).expect("there is room for all symbols");
        numbers[limit] -= 1;
        numbers[shorter] -= 1;
        numbers[shorter + 1] += 2;
        taken -= 1;
    }
    let mut lengths = [0; SYMBOLS];
    // The rarest have the longest.
    let by_length = (1..=u8::MAX).zip(&numbers[1..]).rev();
    let long_first = by_length.flat_map(|(length, number)| (0..*number).map(move |_| length));
    for (length, (_, symbol)) in long_first.zip(leaves) {
        lengths[symbol] = length;
    }
    lengths
}

/// How many leaves Huffman's tree has at each depth; `leaves` rise by their counts.
fn numbers_by_depth(leaves: &[(u32, usize)]) -> Vec<u32> {
    let nodes = 2 * leaves.len() - 1;
    let mut weights: Vec<u64> = leaves.iter().map(|(count, _)| (*count).into()).collect();
    let mut parents = vec![0; nodes];
    // Inner nodes follow the leaves and rise by weight too: the lightest without a parent is the first of either.
    let (mut leaf, mut inner) = (0, leaves.len());
    for node in leaves.len()..nodes {
        let mut weight = 0;
        for _ in 0..2 {
            let first = if leaf < leaves.len() && (inner == node || weights[leaf] <= weights[inner]) {
                &mut leaf
            } else {
                &mut inner
            };
            weight += weights[*first];
            parents[*first] = node;
            *first += 1;
        }
        weights.push(weight);
    }
    let mut depths = vec![0_usize; nodes];
    let mut numbers = vec![0; leaves.len()];
    for node in (0..nodes - 1).rev() {
        depths[node] = depths[parents[node]] + 1;
        if node < leaves.len() {
            numbers[depths[node]] += 1;
        }
    }
    numbers
}

/// The codes that these lengths stand for: shorter ones first, among equal ones in the order of their symbols.
#[must_use]
pub fn codes<const SYMBOLS: usize>(lengths: &[u8; SYMBOLS]) -> [Code; SYMBOLS] {
    let mut numbers = [0_u16; CODE_LIMIT + 1];
    for length in lengths {
        numbers[usize::from(*length)] += 1;
    }
    numbers[0] = 0;
    let mut next = [0_u16; CODE_LIMIT + 1];
    for length in 1..=CODE_LIMIT {
        next[length] = (next[length - 1] + numbers[length - 1]) << 1;
    }
    let mut codes = [Code::default(); SYMBOLS];
    for (code, &length) in codes.iter_mut().zip(lengths).filter(|(_, length)| **length > 0) {
        let next = &mut next[usize::from(length)];
        *code = Code { bits: next.reverse_bits() >> (16 - u16::from(length)), length };
        *next += 1;
    }
    codes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Kraft's sum, in units of the longest code: how many of these the codes take.
    fn taken(lengths: &[u8], limit: usize) -> u32 {
        lengths.iter().filter(|length| **length > 0).map(|length| 1 << (limit - usize::from(*length))).sum()
    }

    #[test]
    fn the_codes_are_those_of_the_rfcs_example() {
        // RFC 1951, section 3.2.2: A to H have 3, 3, 3, 3, 3, 2, 4 and 4 bits.
        let codes = codes(&[3, 3, 3, 3, 3, 2, 4, 4]);
        let written = codes.map(|Code { bits, length }| {
            let first_bit_first = format!("{:016b}", bits.reverse_bits());
            first_bit_first[..usize::from(length)].to_owned()
        });
        assert_eq!(written, ["010", "011", "100", "101", "110", "00", "1110", "1111"]);
    }

    #[test]
    fn frequent_symbols_have_short_codes_and_absent_ones_none() {
        // Huffman's tree by hand: 1 + 1 = 2, 2 + 3 = 5, 5 + 8 = 13.
        assert_eq!(lengths(&[8, 0, 1, 3, 1], 15), [1, 0, 3, 2, 3]);
        assert_eq!(lengths(&[0, 7, 1], 15), [0, 1, 1]);
    }

    #[test]
    fn no_code_is_longer_than_the_limit() {
        // Fibonacci's numbers make the deepest tree: 19 levels of 20 symbols.
        let mut counts = [1_u32; 20];
        for place in 2..20 {
            counts[place] = counts[place - 1] + counts[place - 2];
        }
        for limit in [19, 15, 7] {
            let lengths = lengths(&counts, limit);
            assert_eq!(usize::from(*lengths.iter().max().unwrap()), limit);
            assert_eq!(taken(&lengths, limit), 1 << limit);
        }
    }

    proptest! {
        /// Each code leads to its symbol, and every series of bits to some code (Kraft's sum is 1).
        #[test]
        fn the_codes_of_any_counts_leave_no_gap(counts in proptest::array::uniform19(0_u32..1_000_000), limit in 5_usize..=15) {
            prop_assume!(counts.iter().filter(|count| **count > 0).count() >= 2);
            let lengths = lengths(&counts, limit);
            prop_assert!(counts.iter().zip(lengths).all(|(count, length)| (*count > 0) == (length > 0)));
            prop_assert_eq!(taken(&lengths, limit), 1 << limit);
        }
    }
}
