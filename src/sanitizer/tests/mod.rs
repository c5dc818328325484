//! The sanitizer beside a model that knows all bytes and all edges.

mod cases;
mod model;
mod property;
