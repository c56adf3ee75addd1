//! CostFigures for people: four digits, or all before the point.

/// `1182`, `118.2`, `11.82`, `0.01182`.
pub(super) fn plain(value: f64) -> String {
    if value.abs() < 1e-12 {
        return "0".to_owned();
    }
    let before = value.abs().log10().floor();
    let digits = [3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0].iter().position(|digit| before >= *digit).unwrap_or(7);
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn numbers_have_four_digits() {
        let values = [118_234.5, 1182.3, 118.23, 11.823, 1.1823, 0.118_23, 0.011_823, 0.0, 1e-9];
        let texts = ["118234", "1182", "118.2", "11.82", "1.182", "0.1182", "0.01182", "0", "0.0000000"];
        assert_eq!(values.map(plain), texts);
    }
}
