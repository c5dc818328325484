//! Texts of faults, TCUDA_FAULTS and tcuda_backend_faults: any bytes. What is accepted means the
//! same when it is written down again; what is refused is named, by both doors alike.

use crate::expect::status;
use crate::left;
use crate::options::{shut_down, text_of, work};
use crate::status_of;
use crate::world::last_error;
use std::time::Duration;
use tcuda::base::error::Error;
use tcuda::driver::inject::{Effect, Rule, Rules, Target, parse};
use tcuda::driver::{NAMES, inject};
use tcuda::ffi::device::tcuda_init;
use tcuda::ffi::library::*;

/// The longest that an input may wait for slow calls.
const PATIENCE: Duration = Duration::from_millis(1);

/// A rule as one would write it.
fn written(rule: &Rule) -> String {
    let name = match rule.target {
        Target::Function(index) => NAMES[index],
        Target::Any => "*",
        Target::HostMemory => "malloc",
    };
    let effect = match rule.effect {
        Effect::Code(code) => code.to_string(),
        Effect::Slow(pause) => format!("slow:{}us", pause.as_micros()),
        Effect::Lost(code) => format!("lost:{code}"),
        Effect::NoHostMemory => "fail".to_string(),
    };
    format!("{name}@{}={effect}{}", rule.remaining, if rule.forever { "!" } else { "" })
}

fn is_patient(rules: &Rules) -> bool {
    let pause = |rule: &Rule| match rule.effect {
        // For ever means for each call.
        Effect::Slow(pause) => pause * if rule.forever { 100 } else { 1 },
        _ => Duration::ZERO,
    };
    rules.iter().flatten().map(pause).sum::<Duration>() <= PATIENCE
}

/// One input.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    let options = c"devices=2,memory=64MiB";
    let selected = status_of!(tcuda_backend_select(c"sim".as_ptr(), options.as_ptr()));
    assert_eq!(selected, status::OK);
    let told = status_of!(tcuda_backend_faults(text.as_ptr()));
    let Ok(utf8) = text.to_str() else {
        return assert_eq!(told, status::INVALID_ARGUMENT);
    };
    let rules = match parse(utf8) {
        Ok(rules) => rules,
        Err(error) => {
            let sentence = Error::Faults(error).to_string();
            assert_eq!((told, last_error()), (status::INVALID_ARGUMENT, sentence.clone()));
            let parts = || utf8.split(',').map(str::trim).filter(|part| !part.is_empty());
            let begins = |part: &str| {
                let shown: String = part.chars().take(14).collect();
                sentence.contains(&format!("\"{shown}"))
            };
            assert!(parts().any(begins), "{sentence:?} names no part of {utf8:?}");
            assert!(inject::is_empty(), "a text that was refused set rules");
            return refused_by_the_environment(utf8, &sentence);
        }
    };
    assert_eq!(told, status::OK, "{}", last_error());
    let again: Vec<String> = rules.iter().flatten().map(written).collect();
    assert_eq!(parse(&again.join(" , ")), Ok(rules), "{again:?}");
    assert_eq!(inject::is_empty(), again.is_empty());
    if is_patient(&rules) {
        work();
        work();
    }
    assert_eq!(status_of!(tcuda_backend_faults(std::ptr::null())), status::OK);
    assert!(inject::is_empty());
    shut_down(true);
    work();
    shut_down(false);
    left::check(false);
}

/// The library reads the same text where it begins.
fn refused_by_the_environment(text: &str, sentence: &str) {
    // SAFETY: one input at a time, and no other thread reads the environment.
    unsafe { std::env::set_var("TCUDA_FAULTS", text) };
    let begun = status_of!(tcuda_init());
    // SAFETY: as above.
    unsafe { std::env::remove_var("TCUDA_FAULTS") };
    assert_eq!((begun, last_error()), (status::INVALID_ARGUMENT, sentence.to_string()));
    shut_down(false);
}
