//! Tests of the sanitizer against a model that enumerates bytes and order edges.

mod cases;
mod model;
mod property;
