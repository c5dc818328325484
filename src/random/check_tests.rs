use super::*;
use Distribution::Integers;

fn range(dtype: Dtype, low: i64, high: i64) -> Option<(i64, u64)> {
    match integers(dtype, low, high) {
        Ok(Integers { base, range }) => Some((base, range)),
        _ => None,
    }
}

fn range_from(dtype: Dtype, low: i64) -> Option<(i64, u64)> {
    match integers_from(dtype, low) {
        Ok(Integers { base, range }) => Some((base, range)),
        _ => None,
    }
}

#[test]
fn bounds_of_integers_are_those_of_the_type() {
    assert_eq!(range(Dtype::I32, -5, 5), Some((-5, 10)));
    assert_eq!(range(Dtype::I32, 5, 5), None);
    assert_eq!(range(Dtype::U8, 0, 256), Some((0, 256)));
    assert_eq!(range(Dtype::U8, 0, 257), None);
    assert_eq!(range(Dtype::U8, -1, 10), None);
    assert_eq!(range(Dtype::I8, -128, 128), Some((-128, 256)));
    assert_eq!(range(Dtype::I8, -129, 128), None);
    assert_eq!(range(Dtype::Bool, 0, 2), Some((0, 2)));
    assert_eq!(range(Dtype::Bool, 0, 3), None);
    assert_eq!(range(Dtype::U32, 0, 1 << 32), Some((0, 1 << 32)));
    assert_eq!(range(Dtype::U64, 0, i64::MAX), Some((0, i64::MAX as u64)));
    assert_eq!(range(Dtype::U64, -1, 5), None);
    assert_eq!(range(Dtype::I64, i64::MIN, i64::MAX), Some((i64::MIN, u64::MAX)));
}

#[test]
fn no_float_is_rounded_beyond_the_bounds() {
    // PyTorch's own example: 65503 would become 65504.
    assert_eq!(range(Dtype::F16, 0, 65504), Some((0, 65472)));
    assert_eq!(range(Dtype::F16, 0, 2049), Some((0, 2049)));
    assert_eq!(range(Dtype::F16, 0, 2050), Some((0, 2050)));
    assert_eq!(range(Dtype::F16, 0, 2052), Some((0, 2050)));
    assert_eq!(range(Dtype::F16, 0, 65505), Some((0, 65505)));
    assert_eq!(range(Dtype::F16, 0, 65506), None);
    assert_eq!(range(Dtype::F16, 0, 70000), None);
    assert_eq!(range(Dtype::F16, -70000, 0), None);
    // 4098 would become 4096, and 7999 would become 8000.
    assert_eq!(range(Dtype::F16, 4097, 8000), Some((4100, 3896)));
    assert_eq!(range(Dtype::BF16, 0, 256), Some((0, 256)));
    assert_eq!(range(Dtype::BF16, 0, 1000), Some((0, 996)));
    assert_eq!(range(Dtype::F32, 0, 1 << 24), Some((0, 1 << 24)));
    assert_eq!(range(Dtype::F32, 0, (1 << 24) + 4), Some((0, (1 << 24) + 2)));
    assert_eq!(range(Dtype::F64, 0, 1 << 60), Some((0, (1 << 60) - 128)));
    assert_eq!(range(Dtype::F32, -100, 100), Some((-100, 200)));
    // There is no number between two neighbours.
    assert_eq!(range(Dtype::F16, 4097, 4099), None);
}

#[test]
fn integers_from_reach_the_largest() {
    assert_eq!(range_from(Dtype::I64, 0), Some((0, 1 << 63)));
    assert_eq!(range_from(Dtype::I64, i64::MIN + 1), Some((i64::MIN + 1, u64::MAX)));
    assert_eq!(range_from(Dtype::I32, -1), Some((-1, (1 << 31) + 1)));
    assert_eq!(range_from(Dtype::U8, 255), Some((255, 1)));
    assert_eq!(range_from(Dtype::U8, 256), None);
    assert_eq!(range_from(Dtype::Bool, 0), Some((0, 2)));
    assert_eq!(range_from(Dtype::F32, 10), Some((10, (1 << 24) - 9)));
    assert_eq!(range_from(Dtype::F16, 2048), None);
    assert_eq!(range_from(Dtype::U64, 0), None);
    assert_eq!(integers_from(Dtype::I64, i64::MIN).unwrap(), Distribution::IntegersFull);
}

#[test]
fn parameters_are_checked() {
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    assert!(uniform(Dtype::F32, 0.0, 0.0).is_ok() && uniform(Dtype::F32, 1.0, 0.0).is_err());
    assert!(
        uniform(Dtype::F16, -65504.0, 0.0).is_ok() && uniform(Dtype::F16, 0.0, 65505.0).is_err()
    );
    assert!(uniform(Dtype::F16, -40000.0, 40000.0).is_err());
    assert!(uniform(Dtype::F64, -f64::MAX, f64::MAX).is_err());
    for bad in [nan, infinite, -infinite] {
        assert!(uniform(Dtype::F64, bad, 1.0).is_err() && uniform(Dtype::F64, 0.0, bad).is_err());
    }
    assert!(uniform(Dtype::I32, 0.0, 1.0).is_err());
    assert!(normal(0.0, 0.0, false).is_ok() && normal(0.0, infinite, false).is_ok());
    assert!(normal(0.0, -1e-300, false).is_err() && normal(0.0, nan, false).is_err());
    let half = Distribution::Normal { mean: 1.0, stddev: 2.0 / 2f64.sqrt() };
    assert_eq!(normal(1.0, 2.0, true).unwrap(), half);
    for bad in [0.0, -1.0, nan] {
        assert!(log_normal(0.0, bad).is_err() && exponential(bad).is_err());
        assert!(cauchy(0.0, bad).is_err() && geometric(bad).is_err());
    }
    assert!(geometric(1.0).is_err() && geometric(1e-300).is_ok());
    assert!(bernoulli(0.0).is_ok() && bernoulli(1.0).is_ok());
    assert!(bernoulli(-1e-300).is_err() && bernoulli(1.1).is_err() && bernoulli(nan).is_err());
    let said = exponential(-2.5).unwrap_err().to_string();
    assert_eq!(said, "rate is -2.5; it must be above 0");
}

#[test]
fn every_accepted_pair_has_a_plan() {
    use crate::random::plan::{Geometry, Philox, View, plan};
    let geometry =
        Geometry { multiprocessors: 132, threads_per_multiprocessor: 2048, major: 9, minor: 0 };
    let view = View::flat(512, 1);
    let all = [
        Distribution::Uniform { low: 0.0, high: 1.0 },
        Distribution::Normal { mean: 0.0, stddev: 1.0 },
        Integers { base: 0, range: 2 },
        Distribution::IntegersFull,
        Distribution::IntegersAll,
        Distribution::Bernoulli { p: 0.5 },
        Distribution::Exponential { rate: 1.0 },
        Distribution::LogNormal { mean: 0.0, stddev: 1.0 },
        Distribution::Cauchy { median: 0.0, sigma: 1.0 },
        Distribution::Geometric { p: 0.5 },
    ];
    for distribution in all {
        for dtype in Dtype::ALL {
            let planned = plan(&distribution, dtype, &view, None, &Philox::default(), &geometry);
            let accepted = require(&distribution, dtype, false).is_ok();
            assert_eq!(planned.is_some(), accepted, "{distribution:?} {dtype:?}");
        }
    }
    for dtype in Dtype::ALL {
        for p in [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64] {
            let each = Distribution::BernoulliTensor;
            let p = Some((&view, p));
            let planned = plan(&each, dtype, &view, p, &Philox::default(), &geometry);
            assert_eq!(planned.is_some(), require(&each, dtype, false).is_ok(), "{dtype:?}");
        }
    }
}
