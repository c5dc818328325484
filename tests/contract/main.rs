//! The driver contract suite: what CUDA promises of each driver call, as sequences with the
//! statuses and bytes that they give. The same program runs on the simulated machine
//! (TCUDA_BACKEND=sim, the default) and on a GPU (TCUDA_BACKEND=cuda); scripts/ci/contract.py sets
//! both side by side.
//!
//! Each sequence runs in a process of its own, which is started before the driver is: what one
//! breaks, no other sees, and a crash is a row ("signal 11"), not the end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod aftermath;
mod arguments;
mod bench;
mod callbacks;
mod capture;
mod capture_calls;
mod capture_forks;
mod capture_nodes;
mod conditional;
mod contexts;
mod copies;
mod errors;
mod events;
mod graph_data;
mod graph_updates;
mod graphs;
mod green;
mod ipc;
mod kernels;
mod launches;
mod links;
mod memory;
mod modules;
mod order;
mod other_calls;
mod pinned;
mod pointers;
mod pools;
mod runner;
mod streams;
mod virtual_memory;

use bench::Bench;

/// A sequence of calls.
pub struct Row {
    /// What it is about; one that starts with "alone" runs when nothing else uses the device.
    pub topic: &'static str,
    /// The name of its function.
    pub name: &'static str,
    /// The calls.
    pub run: fn(&Bench),
}

/// Rows of one topic from the names of functions.
macro_rules! rows {
    ($topic:literal: $($name:ident),* $(,)?) => {
        &[$($crate::Row { topic: $topic, name: stringify!($name), run: $name }),*]
    };
}
pub(crate) use rows;

/// Every topic.
pub const TOPICS: &[&[Row]] = &[
    contexts::ROWS,
    memory::ROWS,
    memory::ALONE,
    pinned::ROWS,
    pointers::ROWS,
    copies::ROWS,
    pools::ROWS,
    virtual_memory::ROWS,
    streams::ROWS,
    order::ROWS,
    events::ROWS,
    callbacks::ROWS,
    modules::ROWS,
    launches::ROWS,
    links::ROWS,
    errors::ROWS,
    aftermath::ROWS,
    arguments::devices::ROWS,
    arguments::streams::ROWS,
    arguments::memory::ROWS,
    arguments::virtual_memory::ROWS,
    arguments::modules::ROWS,
    capture::ROWS,
    capture_calls::ROWS,
    capture_forks::ROWS,
    capture_nodes::ROWS,
    graphs::ROWS,
    graph_data::ROWS,
    graph_updates::ROWS,
    conditional::ROWS,
    green::ROWS,
    arguments::green::ROWS,
    ipc::ROWS,
    arguments::ipc::ROWS,
    arguments::managed::ROWS,
];

fn main() {
    runner::main();
}
