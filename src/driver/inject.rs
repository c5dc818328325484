//! Injected failures: the n-th call of a driver function, or of any, gives a chosen CUresult.

use super::{Call, NAMES};
use crate::lock::Mutex;
use crate::rank::Rank;
use std::sync::atomic::{AtomicBool, Ordering};

/// At most so many functions can have a rule at once; more are refused.
const MAX_RULES: usize = 16;

#[derive(Clone, Copy)]
struct Rule {
    /// Index of the function in [`NAMES`]; `None`: any.
    call: Option<usize>,
    /// Calls until it fires; 1: the next.
    remaining: u64,
    code: i32,
    forever: bool,
}

static ARMED: AtomicBool = AtomicBool::new(false);
static RULES: Mutex<[Option<Rule>; MAX_RULES]> = Mutex::new(Rank::RULES, [None; MAX_RULES]);

/// Is any rule set?
#[inline]
pub(super) fn armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// The index in [`NAMES`] of a driver function.
pub fn index_of(function: &str) -> Option<usize> {
    NAMES.iter().position(|name| *name == function)
}

/// Makes the `nth` call from now of a function (`None`: of any) give `code`, once or for ever;
/// 0 removes its rule. False when there are too many rules.
pub fn set(call: Option<usize>, nth: u64, code: i32, forever: bool) -> bool {
    let mut rules = RULES.lock();
    for slot in rules.iter_mut() {
        if slot.is_some_and(|rule| rule.call == call) {
            *slot = None;
        }
    }
    let mut fits = true;
    if nth > 0 {
        match rules.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(Rule { call, remaining: nth, code, forever }),
            None => fits = false,
        }
    }
    ARMED.store(rules.iter().any(Option::is_some), Ordering::Relaxed);
    fits
}

/// Removes all rules.
pub fn clear() {
    *RULES.lock() = [None; MAX_RULES];
    ARMED.store(false, Ordering::Relaxed);
}

/// Counts one call against the rules and gives the code of the first that fires.
#[cold]
pub(super) fn take(call: Call) -> Option<i32> {
    let mut rules = RULES.lock();
    let mut fired = None;
    for slot in rules.iter_mut() {
        let Some(rule) = slot else { continue };
        if rule.call.is_some_and(|index| index != call as usize) {
            continue;
        }
        rule.remaining = rule.remaining.saturating_sub(1);
        if rule.remaining == 0 {
            fired = fired.or(Some(rule.code));
            if rule.forever {
                rule.remaining = 1;
            } else {
                *slot = None;
            }
        }
    }
    ARMED.store(rules.iter().any(Option::is_some), Ordering::Relaxed);
    fired
}
