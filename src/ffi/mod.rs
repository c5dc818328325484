//! The C interface. It only translates handles, pointers, statuses and panics; the modules below
//! decide everything. There is one file for each section of the header, in its order.

#![allow(non_camel_case_types, reason = "types are named as in C")]
#![allow(clippy::missing_safety_doc, reason = "the header's front page has the rules of pointers")]

mod boundary;
pub mod call;
#[rustfmt::skip]
mod call_table;
pub mod callable;
pub mod comm;
pub mod communicator;
pub mod copy;
pub mod device;
pub mod event;
pub mod file;
pub mod generator;
pub mod graph;
pub mod graph_conditional;
pub mod graph_data;
pub mod graph_hooks;
pub mod green_context;
mod handle;
pub mod history;
pub mod host;
pub mod ipc;
pub mod jit;
pub mod kernel;
pub mod library;
pub mod limits;
pub mod managed;
pub mod mem_pool;
pub mod memory;
pub mod memory_event;
pub mod monitor;
pub mod native_stream;
pub mod nvtx;
pub mod observer;
pub mod ort;
pub mod pluggable;
pub mod random;
pub mod sanitizer;
pub mod slot;
pub mod snapshot;
pub mod statistics;
pub mod status;
pub mod stream;
pub mod tensor;
pub mod torch;
mod user_data;
