//! Tests of NVRTC, if there is one, with kernels of functions. Their results are tested in
//! `c_tests/jit_cases.c` and `c_tests/jit_torch.c`.

use super::*;
use crate::driver::compiler::{Failure, Linkage, Program};
use crate::driver::nvrtc::{self, Format};
use crate::jit::source;
use std::ffi::CStr;
use std::time::Instant;

fn compile(code: &str, variant: &Variant<'_>, capability: u32, format: Format) -> Option<Vec<u8>> {
    let signature = source::parse(code).unwrap();
    let (text, name) = (variant.text(code, &signature).unwrap(), variant.name(&signature).unwrap());
    let program = Program {
        source: CStr::from_bytes_with_nul(&text).unwrap(),
        title: c"code",
        entry: CStr::from_bytes_with_nul(&name).unwrap(),
        is_plain: true,
        flags: &[],
        capability,
        linkage: Linkage::Whole,
        images: &[],
    };
    match nvrtc::compile(&program, format) {
        Ok(image) => Some(image.bytes),
        Err(Failure::Library(failure)) => {
            println!("skipped: {failure}");
            None
        }
        Err(failure) => panic!("{failure}\n{}", String::from_utf8_lossy(&text)),
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

const FLAT: Layout = Layout::Flat { width: 1, singles: 0 };

#[test]
fn nvrtc_makes_the_format_that_is_wanted() {
    use ScalarKind::*;
    let code = "template <typename T> T inner(T x) { return std::sqrt(std::exp(x)); }\n\
        template <typename T> void f(T x, T y, T a, T b, T c, T &p, T &q)\n\
        { p = inner(x) * a; q = y / (b + c); }";
    let variant = Variant {
        inputs: &[Kind::I32, Kind::F16],
        outputs: 2,
        common: Kind::F16,
        scalars: &[Double, Int, Bool],
        layout: FLAT,
    };
    // For an unknown device NVRTC makes PTX.
    for (capability, format, is_ptx) in [
        (90, Format::MachineCode, false),
        (90, Format::Ptx, true),
        (250, Format::MachineCode, true),
    ] {
        let Some(image) = compile(code, &variant, capability, format) else { return };
        assert_eq!(image.starts_with(b"\x7fELF"), !is_ptx);
        assert_eq!(contains(&image, "\n.version "), is_ptx);
        assert_eq!(contains(&image, "\n.target sm_90\n"), is_ptx && capability == 90);
    }
}

#[test]
fn nvrtc_knows_the_functions_of_users() {
    let real = "template <typename T> T f(T x) { return std::sin(x) + ::cos(x) + std::abs(x) + \
        std::fmod(x, T(3)) + std::pow(x, T(2)) + max(x, T(1)) + std::tanh(x) + rsqrt(x) + \
        (std::isnan(x) ? T(NAN) : T(INFINITY)) + std::erf(x) + std::log1p(x) + std::floor(x); }";
    let names = "template <typename T> std::enable_if_t<std::is_floating_point<T>::value, T> \
        half(T x) { return std::lerp(x, T(0), T(0.5)); }\n\
        template <typename T> T f(T x) { int n; T w; float v; \
        static_assert(std::is_same_v<std::remove_cv_t<const T>, T> && std::is_arithmetic_v<T>, \
        \"\"); return std::frexp(x, &n) + std::modf(x, &w) + std::remquo(x, w, &n) + \
        std::ilogb(x) + std::lround(x) + std::llround(x) + std::lrint(x) + std::llrint(x) + \
        std::nan(\"\") + std::scalbln(x, 2L) + std::hypot(x, x, T(1)) + std::expf(v = 1) + \
        std::modff(v, &v) + std::frexpf(v, &n) + std::ilogbf(v) + std::lroundf(v) + \
        std::nanf(\"\") + half(x) + std::conditional_t<true, T, int>(x) + \
        std::integral_constant<int, 3>::value + n; }";
    for (code, kind) in [(names, Kind::F16), (real, Kind::F32)] {
        let inputs = [kind];
        let variant =
            Variant { inputs: &inputs, outputs: 1, common: kind, scalars: &[], layout: FLAT };
        if compile(code, &variant, 90, Format::Ptx).is_none() {
            return;
        }
    }
}

#[test]
fn a_plain_function_compiles_quickly() {
    let code = "template <typename T> T add(T x, T y) { return x + y; }";
    let inputs = [Kind::F32, Kind::F32];
    let layout = Layout::Flat { width: 4, singles: 0 };
    let variant = Variant { inputs: &inputs, outputs: 1, common: Kind::F32, scalars: &[], layout };
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        if compile(code, &variant, 90, Format::Ptx).is_none() {
            return;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    println!("figure: nvrtc_ms = {best:.1}");
}
