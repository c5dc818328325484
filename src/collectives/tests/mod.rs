//! The verbs beside a model on the host: every one of them, on machines of up to 16 devices with and
//! without peer access, in the middle of work that runs as late as it may; what waits they cannot do
//! without; and what they refuse.
//!
//! `TCUDA_MODEL_SEED` repeats a run, `PROPTEST_CASES` sets the number of calls, `TCUDA_GAUNTLET=1` makes
//! it fifty times as large.

mod api;
mod buffer;
mod captured;
mod case;
mod number;
mod property;
mod random;
mod reference;
mod refused;
mod run;
mod switches;
mod verbs;
mod waits;
