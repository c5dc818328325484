//! Why the simulated GPU cannot be used.

use super::library::{LoadError, Text};

/// Why a simulated machine cannot be powered on.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// The simulator's library is missing.
    #[error("{0}")]
    Library(#[from] LoadError),
    /// The library has no interface.
    #[error(
        "the library that was found as libtcuda_sim.so is not tcuda's simulator; correct or unset \
         TCUDA_SIM_PATH"
    )]
    NotASimulator,
    /// The library has another version of the interface.
    #[error(
        "libtcuda_sim.so is of another version of tcuda; install the one that was built with \
         libtcuda.so"
    )]
    OtherVersion,
    /// The options are wrong.
    #[error("{0}")]
    Options(Text),
    /// The host lacks memory or descriptors.
    #[error("{0}")]
    NoResources(Text),
}
