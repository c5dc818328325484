//! Elementwise functions, as in `torch.cuda.jiterator`, and whole kernels. They are compiled at
//! their first call. The device keeps them until shutdown, and the disk cache for other processes.

pub mod cache;
pub mod call;
mod includes;
pub mod iterate;
pub mod kernel;
pub mod kind;
pub mod launch;
pub mod limits;
pub mod plans;
pub mod recent;
pub mod rows;
pub mod source;
pub mod store;
pub mod text;
pub mod tile;

use crate::base::error::{Error, Result};
use plans::Plans;
use recent::Recent;
use source::Signature;
use text::{MAX_TENSORS, ScalarKind};

/// The most extra arguments.
pub const MAX_SCALARS: usize = 32;

/// The value of an extra argument.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "Python's own types")]
pub enum Scalar {
    Double(f64),
    Int(i64),
    Bool(bool),
    Complex(f64, f64),
}

impl Scalar {
    fn kind(self) -> ScalarKind {
        match self {
            Scalar::Double(_) => ScalarKind::Double,
            Scalar::Int(_) => ScalarKind::Int,
            Scalar::Bool(_) => ScalarKind::Bool,
            Scalar::Complex(..) => ScalarKind::Complex,
        }
    }

    /// The words of the kernel parameter.
    fn words(self) -> [u64; 2] {
        match self {
            Scalar::Double(value) => [value.to_bits(), 0],
            Scalar::Int(value) => [value as u64, 0],
            Scalar::Bool(value) => [value.into(), 0],
            Scalar::Complex(real, imaginary) => [real.to_bits(), imaginary.to_bits()],
        }
    }
}

/// An extra argument that a function declares, and its default.
struct Declared {
    name: String,
    default: Scalar,
}

/// An elementwise function.
pub struct Jit {
    code: String,
    /// The position of its name in the code.
    name: std::ops::Range<usize>,
    outputs: usize,
    /// Its last parameters are the outputs; otherwise it returns its one output.
    by_reference: bool,
    scalars: Vec<Declared>,
    /// Its kernels, by types and layout.
    plans: Plans<call::PlanKey>,
    recent: Recent,
}

impl Jit {
    /// An error unless it has this many outputs. Called before the list of outputs is read.
    pub fn require_outputs(&self, found: usize) -> Result<()> {
        let (name, expected) = ("num_outputs", self.outputs);
        if found == expected { Ok(()) } else { Err(Error::Count { name, found, expected }) }
    }
}

fn copied(text: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| Error::OutOfHostMemory("a function"))?;
    copy.push_str(text);
    Ok(copy)
}

impl Jit {
    /// A function of this code. `outputs`: `None` if it returns its one output.
    pub fn new<'a>(
        code: &str,
        outputs: Option<i32>,
        scalars: impl ExactSizeIterator<Item = Result<(&'a str, Scalar)>>,
    ) -> Result<Jit> {
        let Signature { name, by_reference: is_void } = source::parse(code)?;
        if code.contains('\0') {
            return Err(Error::Invalid("code has a NUL inside"));
        }
        let number = match outputs {
            None => 1,
            Some(number) if (1..=MAX_TENSORS as i32).contains(&number) => number as usize,
            Some(number) => {
                return Err(Error::OutOfRange {
                    name: "num_outputs",
                    value: number.into(),
                    allowed: "use 1 to 8",
                });
            }
        };
        if is_void && outputs.is_none() {
            return Err(Error::Invalid(
                "the function returns void: it is one for tcuda_jit_create_multi, whose last \
                 parameters are its outputs",
            ));
        }
        let start = name.as_ptr() as usize - code.as_ptr() as usize;
        let name = start..start + name.len();
        if scalars.len() > MAX_SCALARS {
            return Err(Error::OutOfRange {
                name: "num_scalars",
                value: scalars.len() as i64,
                allowed: "a function has at most 32 extra arguments",
            });
        }
        let mut declared = Vec::new();
        let room = declared.try_reserve_exact(scalars.len());
        room.map_err(|_| Error::OutOfHostMemory("a function"))?;
        for scalar in scalars {
            let (name, default) = scalar?;
            if declared.iter().any(|known: &Declared| known.name == name) {
                return Err(Error::Invalid("two of the function's scalars have one name"));
            }
            declared.push(Declared { name: copied(name)?, default });
        }
        Ok(Jit {
            code: copied(code)?,
            name,
            outputs: number,
            by_reference: outputs.is_some(),
            scalars: declared,
            plans: Plans::new(),
            recent: Recent::new(),
        })
    }

    fn signature(&self) -> Signature<'_> {
        Signature { name: &self.code[self.name.clone()], by_reference: self.by_reference }
    }
}
