//! Invalid rules of fault injection.

use crate::base::text::Text;

/// Why a text is no valid list of rules, with the invalid part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Parts are missing.
    #[error("fault \"{0}\" is not of the form function@k=effect, such as cuMemMap@3=2")]
    NotARule(Text),
    /// Not a driver function.
    #[error(
        "fault \"{0}\" names no driver call that tcuda makes; name one such as cuMemMap, or * for \
         any"
    )]
    UnknownFunction(Text),
    /// Not a valid count.
    #[error("fault \"{0}\" does not say which call: after the @ goes 1 for the next, 2, 3, ...")]
    BadCount(Text),
    /// Not a valid effect.
    #[error(
        "fault \"{0}\" has no effect that tcuda knows: use a CUresult such as 2, slow:20ms (us, ms \
         or s, up to 60s), each perhaps with a ! for ever, or lost, or lost:700 with a code that \
         ends a context (214, 700, 709, 714 to 719)"
    )]
    BadEffect(Text),
    /// Rules for host memory need a special build.
    #[error(
        "fault \"{0}\" needs a library built with the feature host_faults: an ordinary one has no \
         say in allocations of host memory"
    )]
    NoHostFaults(Text),
    /// Not a valid effect on host memory.
    #[error("fault \"{0}\" is not possible: an allocation of host memory can only =fail or =fail!")]
    BadHostEffect(Text),
    /// Too many rules.
    #[error("fault \"{0}\" is one too many: there can be 32 rules")]
    TooMany(Text),
}
