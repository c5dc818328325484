use super::*;

#[test]
fn pieces_are_pytorchs() {
    let sizes = |size, count| equal_sizes(size, count).unwrap().to_vec();
    assert_eq!(sizes(12, 4), [3, 3, 3, 3]);
    assert_eq!(sizes(13, 4), [4, 4, 4, 1]);
    // Fewer pieces than requested.
    assert_eq!(sizes(5, 4), [2, 2, 1]);
    assert_eq!(sizes(3, 5), [1, 1, 1]);
    assert_eq!(sizes(0, 3), [0, 0, 0]);
    assert_eq!(sizes(i64::MAX, 1), [i64::MAX]);
}

#[test]
fn sizes_must_be_those_of_the_whole() {
    let check = |sizes: &[i64], size| require_sum(sizes.iter().copied(), size, "sizes");
    assert!(check(&[1, 2], 3).is_ok() && check(&[0, 3, 0], 3).is_ok());
    assert!(check(&[1, 2], 4).is_err() && check(&[4, -1], 3).is_err());
    assert!(check(&[i64::MAX, i64::MAX], i64::MAX - 1).is_err());
}
