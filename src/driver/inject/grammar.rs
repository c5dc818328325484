//! The text form of rules: "cuMemMap@3=2, *@17=999!, cuMemCreate@1=slow:20ms, *@40=lost".

use super::{Effect, MAX_RULES, Rule, Rules, Target, index_of};
pub use crate::base::error::faults::RuleError;
use crate::base::text::Text;
use crate::driver::CudaError;
use crate::driver::code::LAUNCH_FAILED;
use std::time::Duration;

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Parses rules; an empty text has none, blanks around rules are ignored.
pub fn parse(text: &str) -> Result<Rules, RuleError> {
    let mut rules = [None; MAX_RULES];
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    for (count, part) in parts.enumerate() {
        let slot = rules.get_mut(count).ok_or(RuleError::TooMany(Text::new(part)))?;
        *slot = Some(rule(part)?);
    }
    Ok(rules)
}

fn rule(part: &str) -> Result<Rule, RuleError> {
    let whole = Text::new(part);
    let (function, rest) = part.split_once('@').ok_or(RuleError::NotARule(whole))?;
    let (count, effect) = rest.split_once('=').ok_or(RuleError::NotARule(whole))?;
    let target = match function.trim() {
        "*" => Target::Any,
        "malloc" => Target::HostMemory,
        name => Target::Function(index_of(name).ok_or(RuleError::UnknownFunction(whole))?),
    };
    let remaining = number(count.trim()).filter(|count| *count > 0);
    let remaining = remaining.ok_or(RuleError::BadCount(whole))?;
    let effect = effect.trim();
    let (effect, forever) = match effect.strip_suffix('!') {
        Some(effect) => (effect.trim(), true),
        None => (effect, false),
    };
    if target == Target::HostMemory {
        if cfg!(not(any(test, feature = "host_faults"))) {
            return Err(RuleError::NoHostFaults(whole));
        }
        if effect != "fail" {
            return Err(RuleError::BadHostEffect(whole));
        }
        return Ok(Rule { target, remaining, effect: Effect::NoHostMemory, forever });
    }
    let effect = self::effect(effect).ok_or(RuleError::BadEffect(whole))?;
    if forever && matches!(effect, Effect::Lost(_)) {
        // A loss is permanent by itself.
        return Err(RuleError::BadEffect(whole));
    }
    Ok(Rule { target, remaining, effect, forever })
}

fn effect(text: &str) -> Option<Effect> {
    if text == "lost" {
        return Some(Effect::Lost(LAUNCH_FAILED));
    }
    if let Some(code) = text.strip_prefix("lost:") {
        let code = i32::try_from(number(code)?).ok()?;
        let sticky = CudaError { call: "", code }.is_sticky();
        return sticky.then_some(Effect::Lost(code));
    }
    if let Some(time) = text.strip_prefix("slow:") {
        let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
        let (count, unit) = units
            .iter()
            .find_map(|(suffix, unit)| Some((time.strip_suffix(suffix)?.trim_end(), *unit)))?;
        let pause = Duration::from_micros(number(count)?.checked_mul(unit)?);
        return (pause <= LONGEST_PAUSE).then_some(Effect::Slow(pause));
    }
    let code = i32::try_from(number(text)?).ok()?;
    (code != 0).then_some(Effect::Code(code))
}

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Rule {
        let rules = parse(text).unwrap();
        assert!(rules[1..].iter().all(Option::is_none));
        rules[0].unwrap()
    }

    #[test]
    fn every_form_is_read() {
        let map = Target::Function(index_of("cuMemMap").unwrap());
        let (remaining, forever) = (3, false);
        let expected = Rule { target: map, remaining, effect: Effect::Code(2), forever };
        assert_eq!(only("cuMemMap@3=2"), expected);
        assert_eq!(only(" cuMemMap @ 3 = 2 ,"), expected);
        assert_eq!(only("cuMemMap@3=2!"), Rule { forever: true, ..expected });
        assert_eq!(only("*@3=999").target, Target::Any);
        assert_eq!(only("*@3=999").effect, Effect::Code(999));
        assert_eq!(only("*@40=lost").effect, Effect::Lost(719));
        assert_eq!(only("*@40=lost:700").effect, Effect::Lost(700));
        assert_eq!(only("*@1=slow:20ms").effect, Effect::Slow(Duration::from_millis(20)));
        assert_eq!(only("*@1=slow:7us!").effect, Effect::Slow(Duration::from_micros(7)));
        assert_eq!(only("*@1=slow:60s").effect, Effect::Slow(Duration::from_secs(60)));
        assert_eq!(only("malloc@5=fail!").effect, Effect::NoHostMemory);
        assert!(parse("").unwrap().iter().all(Option::is_none));
        assert!(parse(" , ,").unwrap().iter().all(Option::is_none));
        let two = parse("*@1=2,cuInit@18446744073709551615=1").unwrap();
        assert_eq!(two[1].unwrap().remaining, u64::MAX);
    }

    #[test]
    fn refusals_name_the_part() {
        use RuleError::*;
        let part = Text::new;
        for (text, error) in [
            ("cuMemMap", NotARule(part("cuMemMap"))),
            ("cuMemMap=2", NotARule(part("cuMemMap=2"))),
            ("cuMemMap@2", NotARule(part("cuMemMap@2"))),
            ("*@1=2, mmap@2=12", UnknownFunction(part("mmap@2=12"))),
            ("@2=12", UnknownFunction(part("@2=12"))),
            ("*@0=2", BadCount(part("*@0=2"))),
            ("*@=2", BadCount(part("*@=2"))),
            ("*@-1=2", BadCount(part("*@-1=2"))),
            ("*@18446744073709551616=2", BadCount(part("*@18446744073709551616=2"))),
            ("*@1=", BadEffect(part("*@1="))),
            ("*@1=0", BadEffect(part("*@1=0"))),
            ("*@1=-2", BadEffect(part("*@1=-2"))),
            ("*@1=2!!", BadEffect(part("*@1=2!!"))),
            ("*@1=4294967296", BadEffect(part("*@1=4294967296"))),
            ("*@1=fail", BadEffect(part("*@1=fail"))),
            ("*@1=lost!", BadEffect(part("*@1=lost!"))),
            ("*@1=lost:2", BadEffect(part("*@1=lost:2"))),
            ("*@1=slow:61s", BadEffect(part("*@1=slow:61s"))),
            ("*@1=slow:1", BadEffect(part("*@1=slow:1"))),
            ("*@1=slow:ms", BadEffect(part("*@1=slow:ms"))),
            ("malloc@1=2", BadHostEffect(part("malloc@1=2"))),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
            assert!(error.to_string().len() > 40, "{error}");
        }
        let many = "*@9=2,".repeat(MAX_RULES);
        assert!(parse(&many).is_ok());
        assert_eq!(parse(&format!("{many}cuInit@1=3")), Err(TooMany(part("cuInit@1=3"))));
    }
}
