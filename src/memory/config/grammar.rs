//! The grammar of TCUDA_ALLOC_CONF, which is PyTorch's: "key:value,key:[a:1,>:2]". Blanks are
//! ignored, and numbers end where C's strtoull and strtod end. Parsing needs no host memory.

use super::settings::{Backend, INTERVALS, MOST_MIB, Settings};
use crate::base::error::Problem;
use crate::base::text::Text;

const MIB: u64 = 1 << 20;
/// `large_segment_size_mb` must be above this: PyTorch's kMinLargeAlloc.
const LEAST_LARGE_SEGMENT_MB: u64 = 10;
/// The most threads that register pinned memory.
const MOST_REGISTER_THREADS: u64 = 128;

type Result<T> = std::result::Result<T, Problem>;

/// The tokens of a text: separators, and the texts between them without blanks.
struct Tokens<'a> {
    rest: &'a str,
    /// Tokens that were taken.
    index: usize,
}

const SEPARATORS: [char; 4] = [',', ':', '[', ']'];

fn is_separator(token: &Text) -> bool {
    let mut characters = token.as_str().chars();
    let first = characters.next();
    characters.next().is_none() && first.is_some_and(|first| SEPARATORS.contains(&first))
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Tokens<'a> {
        Tokens { rest: text, index: 0 }
    }

    /// The next token and the text after it.
    fn look(&self) -> Option<(Text, &'a str)> {
        let mut rest = self.rest;
        while !rest.is_empty() {
            let end = match rest.find(SEPARATORS) {
                Some(0) => 1,
                Some(end) => end,
                None => rest.len(),
            };
            let (token, behind) = rest.split_at(end);
            let token = Text::without_blanks(token);
            if !token.as_str().is_empty() {
                return Some((token, behind));
            }
            rest = behind;
        }
        None
    }

    fn peek(&self) -> Option<Text> {
        self.look().map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<Text> {
        let (token, behind) = self.look()?;
        self.rest = behind;
        self.index += 1;
        Some(token)
    }

    fn separator(&mut self, expected: char, key: &'static str) -> Result<()> {
        let found = self.next().unwrap_or(Text::new(""));
        if found.as_str().chars().eq([expected]) {
            return Ok(());
        }
        Err(Problem::Separator { expected, key, found })
    }

    /// The value of a key, with the colon before it.
    fn value(&mut self, key: &'static str) -> Result<Text> {
        self.separator(':', key)?;
        match self.next() {
            Some(token) if !is_separator(&token) => Ok(token),
            Some(token) => Err(Problem::NotNumber { key, token }),
            None => Err(Problem::NotNumber { key, token: Text::new("") }),
        }
    }

    fn bool(&mut self, key: &'static str) -> Result<bool> {
        self.separator(':', key)?;
        let index = self.index;
        let token = self.next().unwrap_or(Text::new(""));
        match token.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(Problem::NotBool { key, index, token }),
        }
    }

    fn number(&mut self, key: &'static str) -> Result<(u64, Text)> {
        let token = self.value(key)?;
        Ok((whole(key, token)?, token))
    }

    fn fraction(&mut self, key: &'static str) -> Result<(f64, Text)> {
        let token = self.value(key)?;
        match real(token.as_str()) {
            Some(value) => Ok((value, token)),
            None => Err(Problem::NotNumber { key, token }),
        }
    }

    /// A number of MiB in bytes; the largest is unlimited.
    fn mebibytes(&mut self, key: &'static str, least: u64) -> Result<u64> {
        let (value, token) = self.number(key)?;
        if value < least {
            return Err(Problem::TooSmall { key, least, token });
        }
        Ok(if value >= MOST_MIB { u64::MAX } else { value * MIB })
    }

    /// Skips a value that has no effect here: a token or a list.
    fn skip_value(&mut self, key: &'static str) -> Result<()> {
        self.separator(':', key)?;
        match self.next() {
            Some(token) if token.as_str() == "[" => loop {
                match self.next() {
                    Some(token) if token.as_str() == "]" => return Ok(()),
                    Some(_) => (),
                    None => return Err(Problem::OpenList(key)),
                }
            },
            Some(token) if !is_separator(&token) => Ok(()),
            Some(token) => Err(Problem::NotNumber { key, token }),
            None => Err(Problem::NotNumber { key, token: Text::new("") }),
        }
    }
}

/// The whole number with which a token begins, as stoull reads it, except that a sign that would
/// negate it is refused.
fn whole(key: &'static str, token: Text) -> Result<u64> {
    let text = token.as_str();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().map_err(|_| Problem::NotNumber { key, token })
}

/// The number with which a token begins, as stod reads it.
fn real(text: &str) -> Option<f64> {
    let digits = |from: usize| {
        let count = text.as_bytes()[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        from + count
    };
    let is = |at: usize, any: &[u8]| text.as_bytes().get(at).is_some_and(|byte| any.contains(byte));
    let start = usize::from(is(0, b"+-"));
    let mut end = digits(start);
    let mut count = end - start;
    if is(end, b".") {
        let after = digits(end + 1);
        count += after - (end + 1);
        end = after;
    }
    if count == 0 {
        return None;
    }
    if is(end, b"eE") {
        let sign = end + 1 + usize::from(is(end + 1, b"+-"));
        if digits(sign) > sign {
            end = digits(sign);
        }
    }
    text[..end].parse().ok().filter(|value: &f64| value.is_finite())
}

const LARGE_SEGMENT: &str = "large_segment_size_mb";

/// Every key.
const KEYS: [&str; 28] = [
    LARGE_SEGMENT,
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_free_catch_all",
    "poison_on_free",
    "nvtx_suballocations",
    "lend_idle_memory",
    "share_between_streams",
    "sharing_threshold",
    "exact_peaks",
];

/// Settings changed by a text.
pub fn parse(settings: Settings, text: &str) -> Result<Settings> {
    let mut settings = settings;
    // The least values of other keys depend on this one, wherever it is in the text.
    let mut tokens = Tokens::new(text);
    while let Some(token) = tokens.next() {
        if token.as_str() == LARGE_SEGMENT {
            settings.large_segment_bytes = large_segment(&mut tokens, LARGE_SEGMENT)?;
        }
    }
    settings.max_non_split_rounding_bytes = settings.large_segment_bytes;
    let mut tokens = Tokens::new(text);
    while let Some(token) = tokens.next() {
        let known = KEYS.iter().find(|known| **known == token.as_str());
        let key = known.ok_or(Problem::UnknownKey(token))?;
        pair(&mut settings, &mut tokens, key)?;
        if tokens.peek().is_some() {
            tokens.separator(',', key)?;
        }
    }
    Ok(settings)
}

fn large_segment(tokens: &mut Tokens<'_>, key: &'static str) -> Result<u64> {
    let (value, token) = tokens.number(key)?;
    if value <= LEAST_LARGE_SEGMENT_MB {
        let rule = "CachingAllocator option large_segment_size_mb must be > 10 MB";
        return Err(Problem::Rule { rule, key, token });
    }
    Ok(if value >= MOST_MIB { u64::MAX } else { value * MIB })
}

fn pair(settings: &mut Settings, tokens: &mut Tokens<'_>, key: &'static str) -> Result<()> {
    let large = settings.large_segment_bytes / MIB;
    let host = &mut settings.host;
    match key {
        LARGE_SEGMENT => drop(large_segment(tokens, key)?),
        "max_split_size_mb" => settings.max_split_bytes = tokens.mebibytes(key, large)?,
        "max_non_split_rounding_mb" => {
            settings.max_non_split_rounding_bytes = tokens.mebibytes(key, large)?;
        }
        "garbage_collection_threshold" => {
            let rule = "garbage_collect_threshold is invalid, set it in (0.0, 1.0)";
            let is_allowed = |value| value > 0.0 && value < 1.0;
            settings.garbage_collection_threshold = fraction(tokens, key, rule, is_allowed)?;
        }
        "roundup_power2_divisions" => {
            settings.roundup_power2_divisions = divisions(tokens, key)?;
        }
        "expandable_segments" => settings.expandable_segments = tokens.bool(key)?,
        "backend" => {
            let token = tokens.value(key)?;
            settings.backend = match token.as_str() {
                "native" => Backend::Native,
                "cudaMallocAsync" => Backend::CudaMallocAsync,
                _ => {
                    let rule = "Unknown allocator backend, options are native and cudaMallocAsync";
                    return Err(Problem::Rule { rule, key, token });
                }
            };
        }
        "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
            settings.release_lock_on_cudamalloc = tokens.bool(key)?;
        }
        "graph_capture_record_stream_reuse" => {
            settings.graph_capture_record_stream_reuse = tokens.bool(key)?;
        }
        "per_process_memory_fraction" => {
            let rule = "per_process_memory_fraction is invalid, set it in [0.0, 1.0]";
            settings.per_process_memory_fraction = fraction(tokens, key, rule, is_share)?;
        }
        "throw_on_cudamalloc_oom" => settings.throw_on_cudamalloc_oom = tokens.bool(key)?,
        "pinned_use_background_threads" => host.background_threads = tokens.bool(key)?,
        "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
            host.use_host_register = tokens.bool(key)?;
        }
        "pinned_num_register_threads" => host.register_threads = register_threads(tokens, key)?,
        "pinned_reserve_segment_size_mb" => {
            let (value, token) = tokens.number(key)?;
            if value == 0 {
                let rule = "Pinned reserve segment size has to be greater than 0";
                return Err(Problem::Rule { rule, key, token });
            }
            let bytes = value.checked_mul(MIB);
            host.reserve_segment_bytes = bytes.ok_or(Problem::NotNumber { key, token })?;
        }
        "pinned_max_round_threshold_mb" => host.max_round_threshold = tokens.mebibytes(key, 0)?,
        "pinned_max_cached_size_mb" => host.max_cached_bytes = tokens.mebibytes(key, 0)?,
        "pinned_free_catch_all" => settings.pinned_free_catch_all = tokens.bool(key)?,
        "poison_on_free" => settings.poison_on_free = tokens.bool(key)?,
        "nvtx_suballocations" => settings.nvtx_suballocations = tokens.bool(key)?,
        "lend_idle_memory" => settings.lend_idle_memory = tokens.bool(key)?,
        "share_between_streams" => settings.share_between_streams = tokens.bool(key)?,
        "sharing_threshold" => {
            let rule = "sharing_threshold is invalid, set it in [0.0, 1.0]";
            settings.sharing_threshold = fraction(tokens, key, rule, is_share)?;
        }
        "exact_peaks" => settings.exact_peaks = tokens.bool(key)?,
        "expandable_segments_reserve" | "expandable_segments_reserve_by_class" => {
            tokens.skip_value(key)?;
        }
        _ => return Err(Problem::UnknownKey(Text::new(key))),
    }
    Ok(())
}

fn is_share(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

/// A fraction that `is_allowed` accepts.
fn fraction(
    tokens: &mut Tokens<'_>,
    key: &'static str,
    rule: &'static str,
    is_allowed: impl Fn(f64) -> bool,
) -> Result<f64> {
    match tokens.fraction(key)? {
        (value, _) if is_allowed(value) => Ok(value),
        (_, token) => Err(Problem::Rule { rule, key, token }),
    }
}

fn register_threads(tokens: &mut Tokens<'_>, key: &'static str) -> Result<u32> {
    let (value, token) = tokens.number(key)?;
    if !value.is_power_of_two() {
        let rule = "Number of register threads has to be power of 2";
        return Err(Problem::Rule { rule, key, token });
    }
    if value > MOST_REGISTER_THREADS {
        let rule = "Number of register threads should be less than or equal to 128";
        return Err(Problem::Rule { rule, key, token });
    }
    Ok(value as u32)
}

fn divisions(tokens: &mut Tokens<'_>, key: &'static str) -> Result<[u64; INTERVALS]> {
    let mut all = [0; INTERVALS];
    tokens.separator(':', key)?;
    let first = tokens.next().unwrap_or(Text::new(""));
    if first.as_str() != "[" {
        let value = whole(key, first)?;
        if value != 0 && !value.is_power_of_two() {
            let rule = "For roundups, the divisions has to be power of 2 or 0 to disable roundup";
            return Err(Problem::Rule { rule, key, token: first });
        }
        return Ok([value; INTERVALS]);
    }
    let mut last = None;
    loop {
        let Some(interval) = tokens.next() else { return Err(Problem::OpenList(key)) };
        if interval.as_str() == "]" {
            return Ok(all);
        }
        let (value, token) = tokens.number(key)?;
        if value != 0 && !value.is_power_of_two() {
            let rule = "For roundups, the divisions has to be power of 2 or 0 to disable roundup";
            return Err(Problem::Rule { rule, key, token });
        }
        if interval.as_str() == ">" {
            all[last.unwrap_or(0) + 1..].fill(value);
        } else {
            let boundary = whole(key, interval)?;
            if !boundary.is_power_of_two() {
                let rule = "For roundups, the intervals have to be power of 2";
                return Err(Problem::Rule { rule, key, token: interval });
            }
            let index = (boundary.ilog2() as usize).min(INTERVALS - 1);
            // As in PyTorch: the first also covers what is below it, a gap between two is off.
            all[if last.is_none() { 0 } else { index }..=index].fill(value);
            last = Some(index);
        }
        match tokens.peek() {
            Some(token) if token.as_str() == "]" => (),
            Some(_) => tokens.separator(',', key)?,
            None => return Err(Problem::OpenList(key)),
        }
    }
}
