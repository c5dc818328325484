//! Single rules.
