//! Writes numbers as plain decimals, several times faster than `format!`: a page has tens of thousands.

use std::fmt::Write as _;

pub(crate) fn write_integer(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Writes `number / unit` with all decimals; `unit` is a power of ten.
pub(crate) fn write_fraction(text: &mut String, number: u64, unit: u64) {
    let mut digits = itoa::Buffer::new();
    text.push_str(digits.format(number / unit));
    text.push('.');
    // The one in front keeps the zeros.
    text.push_str(&digits.format(unit + number % unit)[1..]);
}

/// Writes what `{:.6}` writes, but the negative zero as zero.
pub(crate) fn write_rounded(text: &mut String, number: f64) {
    match millionths(number) {
        Some(millionths) => write_fraction(text, millionths, 1_000_000),
        None => write!(text, "{number:.6}").expect("a String takes every write"),
    }
}

/// `number` in millionths, rounded from its exact value, half to even. `None` for what is below zero or at least 2^40.
fn millionths(number: f64) -> Option<u64> {
    if !(0.0..1_099_511_627_776.0).contains(&number) {
        return None;
    }
    // The number is mantissa / 2^shift. The mantissa's highest bit is not stored; where there is none (numbers below
    // 2^-1022), all rounds to zero anyway.
    let (bits, highest) = (number.to_bits(), 1 << 52);
    let shift = 1075 - (bits >> 52 & 0x7ff);
    if shift > 100 {
        return Some(0);
    }
    let exact = u128::from(bits & (highest - 1) | highest) * 1_000_000;
    let (whole, rest, half) = (exact >> shift, exact & ((1 << shift) - 1), 1 << (shift - 1));
    let up = rest > half || rest == half && whole & 1 == 1;
    u64::try_from(whole + u128::from(up)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut text = String::new();
        write(&mut text);
        text
    }

    #[test]
    fn a_fraction_keeps_the_zeros_behind_the_point() {
        let fractions = [(0, 1_000_000), (1, 1_000_000), (10_000_010, 1_000_000), (u64::MAX, 1_000_000_000)];
        let fractions = fractions.map(|(number, unit)| written(|text| write_fraction(text, number, unit)));
        assert_eq!(fractions, ["0.000000", "0.000001", "10.000010", "18446744073.709551615"]);
    }

    #[test]
    fn the_exact_value_is_rounded_and_half_goes_to_even() {
        // 1/128 = 0.0078125 and 3/128 = 0.0234375; 0.0000005 is a little less in binary, 0.9999995 a little more.
        let numbers = [0.007_812_5, 0.023_437_5, 0.000_000_5, 0.999_999_5, 0.1 + 0.2, -0.0, -1.5, 1_099_511_627_776.0];
        let rounded = numbers.map(|number| written(|text| write_rounded(text, number)));
        assert_eq!(
            rounded,
            [
                "0.007812",
                "0.023438",
                "0.000000",
                "1.000000",
                "0.300000",
                "0.000000",
                "-1.500000",
                "1099511627776.000000"
            ]
        );
    }

    proptest! {
        #[test]
        fn it_is_what_the_standard_library_writes(
            anything in any::<f64>().prop_filter("-0.0 is written as zero", |number| number.to_bits() != 1 << 63),
            watts in 0.0..1e5,
            tie in any::<u32>(),
        ) {
            for number in [anything, watts, f64::from(tie) / 128.0] {
                prop_assert_eq!(written(|text| write_rounded(text, number)), format!("{number:.6}"));
            }
        }
    }
}
