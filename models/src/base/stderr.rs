//! Replaces the library's lines on stderr: a model writes none.

use std::fmt;

pub fn takes(_level: i32, _otherwise: i32) -> bool {
    false
}

pub fn log(_level: i32, _line: fmt::Arguments<'_>) {}
