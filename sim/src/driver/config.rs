//! Options of the simulated machine: "devices=4,memory=16GiB,schedule=threads".

use super::error::{ConfigError, Excerpt};
use super::model::{self, H100, Model};
use crate::base::reserve;
use std::borrow::Cow;
use std::time::Duration;

/// The driver's allocation granularity, and the unit of simulated physical memory.
pub const GRANULARITY: usize = 2 << 20;
/// Maximum number of devices; access masks have one bit or byte for each.
pub const MAX_DEVICES: usize = 16;

/// When and where operations of a stream run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// On the calling thread, as soon as they are queued.
    Immediate,
    /// On a worker thread of the stream.
    Threads,
    /// On threads of the host, as late and in as adverse an order as CUDA's rules and this seed
    /// allow. The seed also decides, at every call, which of several host threads continues.
    ///
    /// The same seed gives the same run, also with many host threads, as long as the host's
    /// behaviour between two calls does not depend on time. The seed has no control where two
    /// threads wake each other and race for a lock before the next call, sleep, or compute for
    /// long.
    Adversarial(u64),
}

/// Which devices can reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Every pair.
    Full,
    /// None.
    None,
    /// 0 with 1, 2 with 3, and so on.
    Pairs,
}

/// Handling of objects that are alive when their context or the machine is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaks {
    /// Nothing, as on a GPU.
    Ignore,
    /// Prints a line with the number of objects of each kind to stderr.
    Report,
}

/// The configuration of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of devices.
    pub devices: usize,
    /// Bytes of memory of each device, a multiple of [`GRANULARITY`].
    pub memory: usize,
    /// When operations run.
    pub schedule: ScheduleKind,
    /// For an adversarial schedule: numbers of the only operations that may be delayed, in
    /// ascending order. The others run as soon as possible. `None`: all may be delayed.
    pub late: Option<Vec<u64>>,
    /// File to which an adversarial schedule appends one line for each operation it ran.
    pub trace: Option<String>,
    /// Whether leaked objects are reported.
    pub leaks: Leaks,
    /// True if uses of destroyed streams and events are reported.
    pub destroyed: bool,
    /// Peer topology.
    pub peers: Peers,
    /// What the attributes say that no other option changes.
    pub(super) model: &'static Model,
    /// Multiprocessors of each device.
    pub multiprocessors: i32,
    /// Threads that each of them can hold.
    pub threads_per_multiprocessor: i32,
    /// Locality domains of each device.
    pub locality_domains: u32,
    /// Name of each device.
    pub name: Cow<'static, str>,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// True if devices support virtual memory (`cuMemMap`), which old drivers lack.
    pub virtual_memory: bool,
    /// Duration in nanoseconds of a query of a stream or event. With it, the library paces queries
    /// by the clock, as on a GPU, so runs are not reproducible.
    pub query_time: Option<u64>,
    /// The longest time that a kernel may take.
    pub kernel_time: Duration,
    /// True if races within kernels are looked for and reported.
    pub races: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            devices: 1,
            memory: 16 << 30,
            schedule: ScheduleKind::Immediate,
            late: None,
            trace: None,
            leaks: Leaks::Ignore,
            destroyed: false,
            peers: Peers::Full,
            model: &H100,
            multiprocessors: H100.multiprocessors,
            threads_per_multiprocessor: H100.threads_per_multiprocessor,
            locality_domains: 1,
            name: Cow::Borrowed("Simulated GPU"),
            compute_capability: H100.compute_capability,
            virtual_memory: true,
            query_time: None,
            kernel_time: Duration::from_secs(60),
            races: false,
        }
    }
}

impl Config {
    /// The compute capability as one number, such as 90.
    pub fn capability(&self) -> u32 {
        let (major, minor) = self.compute_capability;
        (major * 10 + minor).unsigned_abs()
    }

    /// Parses options. An empty text gives the defaults; blanks around keys and values are ignored.
    pub fn parse(options: &str) -> Result<Config, ConfigError> {
        let _reserve = reserve::hold().ok_or(ConfigError::Host(libc::ENOMEM))?;
        let mut config = Config::default();
        let pairs = || {
            let options = options.split(',').map(str::trim).filter(|option| !option.is_empty());
            options.map(|option| {
                let pair = option.split_once('=');
                let (key, value) = pair.ok_or(ConfigError::NotAPair(Excerpt::new(option)))?;
                Ok((key.trim(), value.trim()))
            })
        };
        // The other options change the model, wherever it stands.
        for pair in pairs() {
            if let ("gpu", name) = pair? {
                config.be(name)?;
            }
        }
        for pair in pairs() {
            let (key, value) = pair?;
            config.set(key, value)?;
        }
        Ok(config)
    }

    /// Takes what a model has.
    fn be(&mut self, name: &str) -> Result<(), ConfigError> {
        let accepted = "H100, H200, A100, L40S, T4, B200";
        let bad = ConfigError::BadValue { key: "gpu", value: Excerpt::new(name), accepted };
        let model = model::find(name).ok_or(bad)?;
        self.model = model;
        self.name = Cow::Borrowed(model.name);
        self.memory = model.memory << 20;
        self.multiprocessors = model.multiprocessors;
        self.threads_per_multiprocessor = model.threads_per_multiprocessor;
        self.compute_capability = model.compute_capability;
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let bad =
            |key, accepted| ConfigError::BadValue { key, value: Excerpt::new(value), accepted };
        match key {
            "gpu" => (),
            "devices" => {
                self.devices = number(value, 1, MAX_DEVICES as u64)
                    .ok_or(bad("devices", "a number from 1 to 16"))?
                    as usize;
            }
            "memory" => {
                self.memory = bytes(value).ok_or(bad(
                    "memory",
                    "a number of bytes, or of KiB, MiB or GiB (16GiB), from 2 MiB to 16 TiB; it is \
                     rounded down to a multiple of 2 MiB",
                ))?;
            }
            "schedule" => {
                self.schedule = match value {
                    "immediate" => ScheduleKind::Immediate,
                    "threads" => ScheduleKind::Threads,
                    _ => value
                        .strip_prefix("adversarial:")
                        .and_then(|seed| number(seed, 0, u64::MAX))
                        .map(ScheduleKind::Adversarial)
                        .ok_or(bad(
                            "schedule",
                            "immediate, threads, or adversarial:SEED with a number as the seed",
                        ))?,
                };
            }
            "late" => {
                self.late =
                    Some(numbers(value).ok_or(bad(
                        "late",
                        "numbers of operations joined by + (3+17+42), or none",
                    ))?);
            }
            "trace" => {
                if value.is_empty() || value.contains('\0') {
                    return Err(bad("trace", "the path of a file"));
                }
                self.trace = Some(String::from(value));
            }
            "leaks" => {
                self.leaks = match value {
                    "ignore" => Leaks::Ignore,
                    "report" => Leaks::Report,
                    _ => return Err(bad("leaks", "ignore, report")),
                };
            }
            "destroyed" => {
                self.destroyed = match value {
                    "ignore" => false,
                    "report" => true,
                    _ => return Err(bad("destroyed", "ignore, report")),
                };
            }
            "peers" => {
                self.peers = match value {
                    "full" => Peers::Full,
                    "none" => Peers::None,
                    "pairs" => Peers::Pairs,
                    _ => return Err(bad("peers", "full, none, pairs")),
                };
            }
            "virtual_memory" => {
                self.virtual_memory = match value {
                    "full" => true,
                    "none" => false,
                    _ => return Err(bad("virtual_memory", "full, none")),
                };
            }
            "question" => {
                let accepted = "a number of nanoseconds from 0 to 1000000";
                let value = number(value, 0, 1_000_000).ok_or(bad("question", accepted))?;
                self.query_time = Some(value);
            }
            "kernel_time" => {
                let value = number(value, 1, 86_400)
                    .ok_or(bad("kernel_time", "a number of seconds from 1 to 86400"))?;
                self.kernel_time = Duration::from_secs(value);
            }
            "races" => {
                self.races = match value {
                    "ignore" => false,
                    "report" => true,
                    _ => return Err(bad("races", "ignore, report")),
                };
            }
            "multiprocessors" => {
                self.multiprocessors = number(value, 1, 1024)
                    .ok_or(bad("multiprocessors", "a number from 1 to 1024"))?
                    as i32;
            }
            "locality_domains" => {
                self.locality_domains = number(value, 1, 8)
                    .ok_or(bad("locality_domains", "a number from 1 to 8"))?
                    as u32;
            }
            "threads_per_multiprocessor" => {
                let accepted = "a multiple of 32 from 32 to 2048";
                let value = number(value, 32, 2048).filter(|value| value.is_multiple_of(32));
                self.threads_per_multiprocessor =
                    value.ok_or(bad("threads_per_multiprocessor", accepted))? as i32;
            }
            "compute_capability" => {
                let pair = value.split_once('.').and_then(|(major, minor)| {
                    Some((number(major, 5, 99)? as i32, number(minor, 0, 9)? as i32))
                });
                self.compute_capability =
                    pair.ok_or(bad("compute_capability", "major.minor, from 5.0 (9.0)"))?;
            }
            "name" => {
                if value.is_empty() || value.len() > 255 || value.contains('\0') {
                    return Err(bad("name", "1 to 255 bytes"));
                }
                let mut name = String::new();
                name.try_reserve(value.len()).map_err(|_| ConfigError::Host(libc::ENOMEM))?;
                name.push_str(value);
                self.name = Cow::Owned(name);
            }
            _ => return Err(ConfigError::UnknownKey(Excerpt::new(key))),
        }
        Ok(())
    }

    /// True if `device` can access the memory of `peer`.
    pub fn can_access_peer(&self, device: usize, peer: usize) -> bool {
        device != peer
            && match self.peers {
                Peers::Full => true,
                Peers::None => false,
                Peers::Pairs => device ^ 1 == peer,
            }
    }
}

fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|value| (least..=most).contains(value))
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    if text == "none" {
        return Some(Vec::new());
    }
    let mut numbers = Vec::new();
    for part in text.split('+') {
        numbers.push(number(part.trim(), 1, u64::MAX)?);
    }
    numbers.sort_unstable();
    Some(numbers)
}

fn bytes(text: &str) -> Option<usize> {
    let (digits, unit) = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1u64 << 30)]
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)))
        .unwrap_or((text, 1));
    let value = number(digits, 0, u64::MAX)?.checked_mul(unit)?;
    let rounded = value - value % GRANULARITY as u64;
    (GRANULARITY as u64..=16 << 40).contains(&rounded).then_some(rounded as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_every_key() {
        assert_eq!(Config::parse(""), Ok(Config::default()));
        let config = Config::parse(
            " devices = 4 , \
             memory=5MiB,schedule=threads,peers=pairs,leaks=report,destroyed=report,\
             multiprocessors=8,threads_per_multiprocessor=1536,compute_capability=8.6,\
             virtual_memory=none,question=200,kernel_time=2,races=report,\
             locality_domains=2,name=Test GPU,",
        )
        .unwrap();
        assert_eq!(config.devices, 4);
        assert_eq!(config.memory, 4 << 20);
        assert_eq!(config.schedule, ScheduleKind::Threads);
        assert_eq!(config.leaks, Leaks::Report);
        assert!(config.destroyed);
        assert_eq!(config.multiprocessors, 8);
        assert_eq!(config.threads_per_multiprocessor, 1536);
        assert_eq!(config.locality_domains, 2);
        assert_eq!(config.compute_capability, (8, 6));
        assert_eq!(config.name, "Test GPU");
        assert!(!config.virtual_memory && Config::default().virtual_memory);
        assert_eq!((config.query_time, Config::default().query_time), (Some(200), None));
        assert_eq!(config.kernel_time, Duration::from_secs(2));
        assert!(config.races && !Config::default().races);
        assert!(config.can_access_peer(2, 3) && !config.can_access_peer(1, 2));
    }

    #[test]
    fn a_model_is_changed_by_the_other_options() {
        let config = Config::parse("multiprocessors=8,gpu=t4").unwrap();
        assert_eq!((config.name.as_ref(), config.compute_capability), ("Tesla T4", (7, 5)));
        assert_eq!((config.multiprocessors, config.threads_per_multiprocessor), (8, 1024));
        assert_eq!(config.memory, 15_094 << 20);
        for model in &model::MODELS {
            let config = Config::parse(&format!("gpu={}", model.key)).unwrap();
            assert_eq!(config.model, model);
            assert!(config.memory.is_multiple_of(GRANULARITY), "{}", model.key);
        }
    }

    #[test]
    fn an_adversary_has_a_seed() {
        let config =
            Config::parse("schedule=adversarial:18446744073709551615, late=17 + 3, trace=a/b");
        let config = config.unwrap();
        assert_eq!(config.schedule, ScheduleKind::Adversarial(u64::MAX));
        assert_eq!(config.late, Some(vec![3, 17]));
        assert_eq!(config.trace.as_deref(), Some("a/b"));
        assert_eq!(Config::parse("late=none").unwrap().late, Some(Vec::new()));
    }

    #[test]
    fn refusals_say_what_and_why() {
        let message = |options| Config::parse(options).unwrap_err().to_string();
        assert!(message("device=4").contains("\"device\""));
        assert!(message("devices=0").contains("1 to 16"));
        assert!(message("devices=17").contains("\"17\""));
        assert!(message("devices=+2").contains("\"+2\""));
        assert!(message("memory=1MiB").contains("2 MiB"));
        assert!(message("memory=16GB").contains("GiB"));
        assert!(message("memory=99999999999GiB").contains("GiB"));
        assert!(message("threads").contains("key=value"));
        assert!(message("schedule=late").contains("immediate"));
        assert!(message("schedule=adversarial").contains("SEED"));
        assert!(message("schedule=adversarial:").contains("SEED"));
        assert!(message("schedule=adversarial:-1").contains("SEED"));
        assert!(message("late=3+").contains("3+17+42"));
        assert!(message("late=0").contains("3+17+42"));
        assert!(message("trace=").contains("path"));
        assert!(message("virtual_memory=off").contains("full, none"));
        assert!(message("question=long").contains("nanoseconds"));
        assert!(message("locality_domains=9").contains("from 1 to 8"));
        assert!(message("threads_per_multiprocessor=100").contains("multiple of 32"));
        assert!(message("kernel_time=0").contains("1 to 86400"));
        assert!(message("races=yes").contains("ignore, report"));
        assert!(message("gpu=H1000").contains("A100"));
        assert!(message("leaks=abort").contains("ignore, report"));
        assert!(message("destroyed=abort").contains("ignore, report"));
        let long = format!("{}é", "x".repeat(39));
        assert!(message(&format!("{long}=1")).contains("..."));
    }
}
