//! Fractions of a number of bytes.

/// A fraction of `total` in bytes: the largest number whose quotient by `total` is at most
/// `fraction`. Thus `fraction = bytes / total` gives `bytes`, however the division and the product
/// round.
pub(in crate::memory) fn bytes_of(fraction: f64, total: u64) -> u64 {
    let product = (fraction * total as f64) as u64;
    let is_within = |bytes: u64| bytes as f64 / total as f64 <= fraction;
    if product < total && is_within(product + 1) { product + 1 } else { product }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fraction_of_a_number_of_bytes_gives_that_number() {
        const MIB: u64 = 1 << 20;
        for total in [15 << 10, (80 << 10) - 257, 24_217].map(|mib| mib * MIB + 4096) {
            for bytes in (1..total / (2 * MIB)).map(|units| units * 2 * MIB) {
                assert_eq!(bytes_of(bytes as f64 / total as f64, total), bytes, "of {total}");
                let below = (bytes as f64 - 0.5) / total as f64;
                assert_eq!(bytes_of(below, total), bytes - 1, "of {total}");
            }
        }
        assert_eq!((bytes_of(0.5, 0), bytes_of(1.0, 1001), bytes_of(0.0, 1001)), (0, 1001, 0));
    }
}
