//! The settings of the allocator, by TCUDA_ALLOC_CONF, by PyTorch's variables, or at run time.

use super::grammar;
use super::host_settings::HostSettings;
use crate::base::environment;
use crate::base::error::{ConfigError, Error, Result};
use crate::base::lock::Mutex;
use crate::base::log::{self, Level};
use crate::base::rank::Rank;
use std::ffi::CStr;
use std::fmt;

const MIB: u64 = 1 << 20;
/// The largest number of MiB that is a number of bytes; it means "unlimited".
pub const MOST_MIB: u64 = u64::MAX / MIB;

/// Where device memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// The arenas of `memory`.
    Native,
    /// The driver's memory pools.
    CudaMallocAsync,
}

impl Backend {
    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// Divisions of the intervals from 1 MiB to 64 GiB, each twice as large as the one before.
pub const INTERVALS: usize = 16;

/// All settings. Sizes are in bytes, `u64::MAX` is unlimited.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs, reason = "PyTorch's names; docs/configuration.md documents them")]
pub struct Settings {
    pub backend: Backend,
    pub expandable_segments: bool,
    pub large_segment_bytes: u64,
    pub max_split_bytes: u64,
    pub max_non_split_rounding_bytes: u64,
    /// 0: off.
    pub garbage_collection_threshold: f64,
    /// A power of two, or 0, for each interval.
    pub roundup_power2_divisions: [u64; INTERVALS],
    pub release_lock_on_cudamalloc: bool,
    pub graph_capture_record_stream_reuse: bool,
    pub per_process_memory_fraction: f64,
    pub throw_on_cudamalloc_oom: bool,
    pub pinned_free_catch_all: bool,
    pub poison_on_free: bool,
    pub nvtx_suballocations: bool,
    pub lend_idle_memory: bool,
    pub share_between_streams: bool,
    pub sharing_threshold: f64,
    pub exact_peaks: bool,
    pub host: HostSettings,
}

impl Settings {
    /// The default settings.
    pub const DEFAULT: Settings = Settings {
        backend: Backend::Native,
        expandable_segments: true,
        large_segment_bytes: 20 * MIB,
        max_split_bytes: u64::MAX,
        max_non_split_rounding_bytes: 20 * MIB,
        garbage_collection_threshold: 0.0,
        roundup_power2_divisions: [0; INTERVALS],
        release_lock_on_cudamalloc: false,
        graph_capture_record_stream_reuse: false,
        per_process_memory_fraction: 1.0,
        throw_on_cudamalloc_oom: false,
        pinned_free_catch_all: false,
        poison_on_free: false,
        nvtx_suballocations: false,
        lend_idle_memory: true,
        share_between_streams: true,
        sharing_threshold: 0.5,
        exact_peaks: true,
        host: HostSettings::DEFAULT,
    };

    /// These settings, changed by a text. As in PyTorch, the three keys that shape blocks return to
    /// their defaults first, and the others keep their values.
    pub fn changed_by(&self, text: &str, source: &'static str) -> Result<Settings> {
        let fresh = Settings {
            max_split_bytes: u64::MAX,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; INTERVALS],
            ..*self
        };
        grammar::parse(fresh, text)
            .map_err(|problem| Error::Config(ConfigError { source, problem }))
    }

    /// Writes to the log which accepted settings do not do what they seem to.
    pub fn warn(&self) {
        let shapes = self.max_split_bytes != u64::MAX
            || self.garbage_collection_threshold > 0.0
            || self.roundup_power2_divisions != [0; INTERVALS];
        if self.backend == Backend::CudaMallocAsync && shapes {
            log::write(
                Level::Warning,
                format_args!(
                    "backend:cudaMallocAsync ignores max_split_size_mb, \
                     roundup_power2_divisions, and garbage_collect_threshold."
                ),
            );
        }
        if self.nvtx_suballocations && self.expandable_segments {
            log::write(
                Level::Warning,
                format_args!(
                    "nvtx_suballocations needs expandable_segments:False: tools can follow the \
                     blocks in memory of cuMemAlloc only"
                ),
            );
        }
        let HostSettings { max_round_threshold, max_cached_bytes, .. } = self.host;
        if max_round_threshold > max_cached_bytes {
            log::write(
                Level::Warning,
                format_args!(
                    "pinned_max_round_threshold_mb is {} and pinned_max_cached_size_mb {}: above \
                     the latter nothing is rounded",
                    max_round_threshold / MIB,
                    max_cached_bytes / MIB
                ),
            );
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::DEFAULT
    }
}

/// "True" or "False", as Python writes them.
struct Bool(bool);

impl fmt::Display for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "True" } else { "False" })
    }
}

/// The text that gives these settings again. Keys that a text resets to their defaults are left out
/// if they have these, because not all of those values can be written.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        write!(f, "backend:{}", self.backend.name())?;
        write!(f, ",expandable_segments:{}", Bool(self.expandable_segments))?;
        write!(f, ",large_segment_size_mb:{}", self.large_segment_bytes / MIB)?;
        if self.max_split_bytes != u64::MAX {
            write!(f, ",max_split_size_mb:{}", self.max_split_bytes / MIB)?;
        }
        write!(f, ",max_non_split_rounding_mb:{}", self.max_non_split_rounding_bytes / MIB)?;
        if self.garbage_collection_threshold > 0.0 {
            write!(f, ",garbage_collection_threshold:{:?}", self.garbage_collection_threshold)?;
        }
        if self.roundup_power2_divisions != [0; INTERVALS] {
            f.write_str(",roundup_power2_divisions:[")?;
            for (index, divisions) in self.roundup_power2_divisions.iter().enumerate() {
                write!(f, "{}{}:{divisions}", if index == 0 { "" } else { "," }, 1u64 << index)?;
            }
            f.write_str("]")?;
        }
        write!(f, ",release_lock_on_cudamalloc:{}", Bool(self.release_lock_on_cudamalloc))?;
        let reuse = Bool(self.graph_capture_record_stream_reuse);
        write!(f, ",graph_capture_record_stream_reuse:{reuse}")?;
        write!(f, ",per_process_memory_fraction:{:?}", self.per_process_memory_fraction)?;
        write!(f, ",throw_on_cudamalloc_oom:{}", Bool(self.throw_on_cudamalloc_oom))?;
        write!(f, ",pinned_use_cuda_host_register:{}", Bool(host.use_host_register))?;
        write!(f, ",pinned_num_register_threads:{}", host.register_threads)?;
        write!(f, ",pinned_use_background_threads:{}", Bool(host.background_threads))?;
        if host.reserve_segment_bytes != 0 {
            write!(f, ",pinned_reserve_segment_size_mb:{}", host.reserve_segment_bytes / MIB)?;
        }
        write!(f, ",pinned_max_round_threshold_mb:{}", host.max_round_threshold / MIB)?;
        write!(f, ",pinned_max_cached_size_mb:{}", host.max_cached_bytes / MIB)?;
        write!(f, ",pinned_free_catch_all:{}", Bool(self.pinned_free_catch_all))?;
        // PyTorch does not know these keys. They are left out if they have their defaults, so that
        // PyTorch can read the text.
        if self.poison_on_free {
            f.write_str(",poison_on_free:True")?;
        }
        if self.nvtx_suballocations {
            f.write_str(",nvtx_suballocations:True")?;
        }
        if !self.lend_idle_memory {
            f.write_str(",lend_idle_memory:False")?;
        }
        if !self.share_between_streams {
            f.write_str(",share_between_streams:False")?;
        }
        if self.sharing_threshold != Settings::DEFAULT.sharing_threshold {
            write!(f, ",sharing_threshold:{:?}", self.sharing_threshold)?;
        }
        if !self.exact_peaks {
            f.write_str(",exact_peaks:False")?;
        }
        Ok(())
    }
}

/// The sources of settings, in order: only the first one that is set counts.
const VARIABLES: [(&CStr, &str); 3] = [
    (c"TCUDA_ALLOC_CONF", "TCUDA_ALLOC_CONF"),
    (c"PYTORCH_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    (c"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
];

/// The settings in force; none: the environment was not read yet.
static CHOSEN: Mutex<Option<Settings>> = Mutex::new(Rank::LEAF, None);

fn from_environment() -> Result<Settings> {
    for (variable, name) in VARIABLES {
        let text = environment::text(variable)?;
        if !text.is_empty() {
            return Settings::DEFAULT.changed_by(text, name);
        }
    }
    Ok(Settings::DEFAULT)
}

/// The settings in force, or those that the environment would give.
pub fn current() -> Result<Settings> {
    let chosen = *CHOSEN.lock();
    match chosen {
        Some(settings) => Ok(settings),
        None => from_environment(),
    }
}

/// Puts settings in force.
pub(crate) fn choose(settings: Settings) {
    *CHOSEN.lock() = Some(settings);
}

/// Resets the settings: the environment is read again.
pub(crate) fn forget() {
    *CHOSEN.lock() = None;
}
