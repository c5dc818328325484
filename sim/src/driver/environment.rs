//! The environment of the program.

/// The value of a variable; `None` without it, and in a program with raised privileges, whose
/// caller sets its environment.
pub(super) fn text(name: &str) -> Option<String> {
    // SAFETY: no preconditions.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // Of bytes that are no UTF-8 the text keeps the others.
    let value = || std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    if is_privileged { None } else { value() }
}
