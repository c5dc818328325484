use super::*;

#[test]
fn number_types_follow_from_dtypes() {
    let known = |code, bits| number_of(Dtype::new(code, bits)).ok();
    assert_eq!(known(code::FLOAT, 32), Some((Number::F32, 1)));
    assert_eq!(known(code::COMPLEX, 64), Some((Number::F32, 2)));
    assert_eq!(known(code::COMPLEX, 32), Some((Number::F16, 2)));
    assert_eq!(known(code::UINT, 64), Some((Number::Int64, 1)));
    assert_eq!(known(code::BOOL, 8), Some((Number::Bool, 1)));
    for (code, bits) in [(code::INT, 4), (code::FLOAT, 128), (code::OPAQUE, 32), (10, 8), (17, 4)] {
        assert_eq!(known(code, bits), None);
    }
    let vector = Dtype { code: code::FLOAT, bits: 16, lanes: 4 };
    assert_eq!(number_of(vector).unwrap(), (Number::F16, 4));
}
