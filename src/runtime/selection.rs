//! The selection of the backend and its options: by the host, else by the environment.

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::text::Text;
use crate::driver::sim;
use std::ffi::CStr;

/// A backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// libcuda.
    Cuda,
    /// The simulated machine.
    Sim,
}

impl Backend {
    /// "cuda" or "sim".
    pub fn name(self) -> &'static CStr {
        match self {
            Backend::Cuda => c"cuda",
            Backend::Sim => c"sim",
        }
    }

    /// The backend of a name; `parameter` is the source of the name, for errors.
    pub fn parse(name: &str, parameter: &'static str) -> Result<Backend> {
        match name {
            "cuda" => Ok(Backend::Cuda),
            "sim" => Ok(Backend::Sim),
            _ => Err(Error::BadText {
                name: parameter,
                value: Text::new(name),
                allowed: "use \"cuda\" or \"sim\"",
            }),
        }
    }
}

/// The arguments of `tcuda_backend_select`.
pub(crate) struct Selection {
    backend: Option<Backend>,
    options: String,
}

static SELECTION: Mutex<Selection> =
    Mutex::new(Rank::LEAF, Selection { backend: None, options: String::new() });

impl Selection {
    /// Checks a selection.
    pub fn new(backend: Backend, options: &str) -> Result<Selection> {
        if backend == Backend::Cuda && !options.is_empty() {
            return Err(Error::BadText {
                name: "options",
                value: Text::new(options),
                allowed: "the backend \"cuda\" has none; pass NULL",
            });
        }
        if backend == Backend::Sim {
            sim::check(options).map_err(Error::Simulator)?;
        }
        let mut copy = String::new();
        copy.try_reserve(options.len()).map_err(|_| Error::OutOfHostMemory("the options"))?;
        copy.push_str(options);
        Ok(Selection { backend: Some(backend), options: copy })
    }
}

/// Replaces the selection.
pub(crate) fn choose(selection: Selection) {
    *SELECTION.lock() = selection;
}

/// The backend that is selected.
pub(crate) fn backend() -> Result<Backend> {
    let chosen = SELECTION.lock().backend;
    match chosen {
        Some(backend) => Ok(backend),
        None => match environment::text(c"TCUDA_BACKEND")? {
            "" => Ok(Backend::Cuda),
            name => Backend::parse(name, "TCUDA_BACKEND"),
        },
    }
}

/// Its name, or the default's if the selection is invalid.
pub fn name() -> &'static CStr {
    backend().unwrap_or(Backend::Cuda).name()
}

/// Runs `body` with the options of the simulated machine.
pub(crate) fn with_options<R>(body: impl FnOnce(&str) -> Result<R>) -> Result<R> {
    let selection = SELECTION.lock();
    if selection.backend.is_some() && !selection.options.is_empty() {
        return body(&selection.options);
    }
    body(environment::text(c"TCUDA_SIM")?)
}
