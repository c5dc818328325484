//! Injected faults: the n-th call of a driver function, or of any, fails with a chosen CUresult, is
//! slow, or loses its device. They are injected before the table, so that both backends have them.

mod grammar;
mod lost;

use super::{Call, Driver, NAMES};
use crate::base::lock::Mutex;
use crate::base::progress;
use crate::base::rank::Rank;
pub use grammar::{RuleError, parse};
use lost::Lost;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Most rules at once; more are refused.
pub const MAX_RULES: usize = 32;

/// The effect on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call is not made and returns this CUresult.
    Code(i32),
    /// The call is made after a pause.
    Slow(Duration),
    /// Its device is lost: this and all later calls that work with it return this CUresult.
    Lost(i32),
    /// An allocation of host memory fails.
    NoHostMemory,
}

/// What a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Calls of one function, by its index in [`NAMES`].
    Function(usize),
    /// Calls of any function.
    Any,
    /// Allocations of host memory by the library itself.
    HostMemory,
}

/// The `remaining`-th counted call has the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The calls that it counts.
    pub target: Target,
    /// Number of calls until it fires; 1: the next.
    pub remaining: u64,
    /// The effect.
    pub effect: Effect,
    /// Does it fire for all later calls too?
    pub forever: bool,
}

/// A set of rules.
pub type Rules = [Option<Rule>; MAX_RULES];

struct State {
    rules: Rules,
    lost: Lost,
}

static ARMED: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<State> =
    Mutex::new(Rank::RULES, State { rules: [None; MAX_RULES], lost: Lost::new() });
static FIRED: AtomicU64 = AtomicU64::new(0);
/// Number of refused calls that destroy something, by function, in this generation of the library.
static REFUSED: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Is any rule set, or any device lost?
#[inline]
pub(super) fn armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// The index in [`NAMES`] of a driver function.
pub fn index_of(function: &str) -> Option<usize> {
    NAMES.iter().position(|name| *name == function)
}

/// Number of calls and allocations that failed or were slow since the process began.
pub fn fired() -> u64 {
    FIRED.load(Ordering::Relaxed) + host_memory_fired()
}

/// Number of refused calls of a function in this generation of the library.
pub fn refused(call: Call) -> u64 {
    refused_at(call as usize)
}

/// The same by the function's index in the table.
pub(super) fn refused_at(call: usize) -> u64 {
    REFUSED.get(call).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Is a device lost?
pub fn has_lost_device() -> bool {
    state(|state| state.lost.any())
}

/// Makes the `nth` call from now of a function (`None`: of any) return `code`, once or for ever; 0
/// removes its rules. False if there are too many rules.
pub fn set(call: Option<usize>, nth: u64, code: i32, forever: bool) -> bool {
    let target = call.map_or(Target::Any, Target::Function);
    let is_set = state(|state| {
        for slot in &mut state.rules {
            if slot.is_some_and(|rule| rule.target == target) {
                *slot = None;
            }
        }
        if nth == 0 {
            return true;
        }
        let rule = Rule { target, remaining: nth, effect: Effect::Code(code), forever };
        match state.rules.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => {
                *slot = Some(rule);
                true
            }
            None => false,
        }
    });
    // Work that a rule has delayed may be over now.
    progress::notify();
    is_set
}

/// Replaces all rules. Lost devices stay lost.
pub fn replace(rules: &Rules) {
    state(|state| state.rules = *rules);
    progress::notify();
    let host = rules.iter().flatten().find(|rule| rule.target == Target::HostMemory);
    set_host_memory(host.map_or(0, |rule| rule.remaining), host.is_some_and(|rule| rule.forever));
}

/// Is no rule set?
pub fn is_empty() -> bool {
    state(|state| state.rules.iter().all(Option::is_none))
}

/// Removes all rules and restores lost devices, at shutdown. The counts of refused calls stay until
/// [`forget`], because the backend checks at its end what is still alive.
pub fn clear() {
    state(|state| {
        state.rules = [None; MAX_RULES];
        state.lost.clear();
    });
    set_host_memory(0, false);
}

/// [`clear`] and the counts of refused calls, after the end of the backend.
pub fn forget() {
    clear();
    REFUSED.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// Runs `body` on the state, and then updates whether calls must check it.
fn state<R>(body: impl FnOnce(&mut State) -> R) -> R {
    let mut state = STATE.lock();
    let result = body(&mut state);
    let rules = state.rules.iter().flatten().any(|rule| rule.target != Target::HostMemory);
    ARMED.store(rules || state.lost.any(), Ordering::Relaxed);
    result
}

impl State {
    /// Do the rules depend on the devices of calls?
    fn follows_devices(&self) -> bool {
        let loses = |rule: &Rule| matches!(rule.effect, Effect::Lost(_));
        self.lost.any() || self.rules.iter().flatten().any(loses)
    }

    /// Counts one call against the rules: returns its delay, and the code that it returns instead
    /// of being made.
    fn count(&mut self, call: Call, devices: u64) -> (Duration, Option<i32>) {
        let (mut pause, mut code) = (Duration::ZERO, self.lost.code(devices));
        for slot in &mut self.rules {
            let Some(rule) = slot else { continue };
            match rule.target {
                Target::Function(index) if index == call as usize => (),
                Target::Any => (),
                _ => continue,
            }
            rule.remaining = rule.remaining.saturating_sub(1);
            if rule.remaining > 0 {
                continue;
            }
            match rule.effect {
                Effect::Code(given) => code = code.or(Some(given)),
                Effect::Slow(time) => pause += time,
                Effect::Lost(given) if devices != 0 => {
                    self.lost.lose(devices, given);
                    code = code.or(Some(given));
                }
                Effect::Lost(_) => {
                    // The call works with no device: the next one that does loses it.
                    rule.remaining = 1;
                    continue;
                }
                Effect::NoHostMemory => (),
            }
            if rule.forever {
                rule.remaining = 1;
            } else {
                *slot = None;
            }
        }
        (pause, code)
    }
}

/// Counts one call with its arguments against the rules, pauses if it is to be slow, and returns
/// the code that it returns instead of being made.
#[cold]
#[inline(never)]
pub(super) fn take(driver: &Driver, call: Call, arguments: &[(&str, u64)]) -> Option<i32> {
    let mut devices = 0;
    if state(|state| state.follows_devices()) {
        // Without the lock, because it makes driver calls.
        let seen = lost::CallDevices::of(&driver.table, call, arguments);
        devices = state(|state| state.lost.devices(call, &seen));
    }
    let (pause, code) = state(|state| state.count(call, devices));
    if code.is_some() || !pause.is_zero() {
        FIRED.fetch_add(1, Ordering::Relaxed);
    }
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
    if code.is_some() {
        REFUSED[call as usize].fetch_add(1, Ordering::Relaxed);
        lost::finish(&driver.table, call, arguments, has_lost_device());
    }
    code
}

#[cfg(any(test, feature = "host_faults"))]
use crate::base::host_faults::{fired as host_memory_fired, set as set_host_memory};

#[cfg(not(any(test, feature = "host_faults")))]
fn host_memory_fired() -> u64 {
    0
}

#[cfg(not(any(test, feature = "host_faults")))]
fn set_host_memory(_nth: u64, _forever: bool) {}
