//! Sentences about the driver: that there is none, and what its failures mean.

use crate::driver::CudaError;
use crate::environment;
use std::fmt;

/// What to do where there is no GPU, but options of the simulated machine are set.
pub(super) fn simulator_hint() -> &'static str {
    match environment::value(c"TCUDA_SIM") {
        Some(_) => {
            "; TCUDA_SIM is set, but the simulated machine runs only where it is chosen: set \
             TCUDA_BACKEND=sim, or call tcuda_backend_select"
        }
        None => "",
    }
}

/// The sentence about a failed driver call.
pub struct CudaErrorText<'a>(pub &'a CudaError);

impl fmt::Display for CudaErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CudaError { call, code } = *self.0;
        let (name, text) = crate::driver::describe(code);
        write!(f, "{call} failed: {name} ({code}): {text}")?;
        if self.0.is_sticky() {
            write!(f, "; the device's context is unusable from now on: end the process")?;
        }
        Ok(())
    }
}
