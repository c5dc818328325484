//! The text form of the settings: the meaning of each key, and the message of each mistake.

use crate::base::error::ConfigError;
use crate::base::error::Error;
use crate::memory::config::settings::{Backend, Settings};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn parsed(text: &str) -> Settings {
    Settings::DEFAULT.changed_by(text, "text").unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn refused(text: &str, sentence: &str) {
    match Settings::DEFAULT.changed_by(text, "text") {
        Err(Error::Config(ConfigError { source: "text", problem })) => {
            let message = Error::Config(ConfigError { source: "text", problem }).to_string();
            assert!(
                message.starts_with("text: ") && message.contains(sentence),
                "{text}: {message}"
            );
        }
        other => panic!("{text}: {other:?}"),
    }
}

/// A text, and its effect on the settings.
type Row = (&'static str, fn(&mut Settings));

const ROWS: &[Row] = &[
    ("", |_| ()),
    (" \t\n", |_| ()),
    ("max_split_size_mb:20", |s| s.max_split_bytes = 20 * MIB),
    (" max_split _size_mb\t: 2 1 ,", |s| s.max_split_bytes = 21 * MIB),
    ("max_split_size_mb:512MB", |s| s.max_split_bytes = 512 * MIB),
    ("max_split_size_mb:+512", |s| s.max_split_bytes = 512 * MIB),
    ("max_split_size_mb:17592186044415", |_| ()),
    ("max_split_size_mb:18446744073709551615", |_| ()),
    ("large_segment_size_mb:11,max_split_size_mb:11", |s| {
        s.max_split_bytes = 11 * MIB;
        large(s, 11 * MIB);
    }),
    ("max_split_size_mb:12,large_segment_size_mb:12", |s| {
        s.max_split_bytes = 12 * MIB;
        large(s, 12 * MIB);
    }),
    ("large_segment_size_mb:40", |s| large(s, 40 * MIB)),
    ("lend_idle_memory:False", |s| s.lend_idle_memory = false),
    ("share_between_streams:False", |s| s.share_between_streams = false),
    ("sharing_threshold:0", |s| s.sharing_threshold = 0.0),
    ("sharing_threshold:1.0", |s| s.sharing_threshold = 1.0),
    ("exact_peaks:False", |s| s.exact_peaks = false),
    ("max_non_split_rounding_mb:64", |s| s.max_non_split_rounding_bytes = 64 * MIB),
    ("garbage_collection_threshold:0.6", |s| s.garbage_collection_threshold = 0.6),
    ("garbage_collection_threshold:.5", |s| s.garbage_collection_threshold = 0.5),
    ("garbage_collection_threshold:5e-1x", |s| s.garbage_collection_threshold = 0.5),
    ("garbage_collection_threshold:0.25e", |s| s.garbage_collection_threshold = 0.25),
    ("roundup_power2_divisions:4", |s| s.roundup_power2_divisions = [4; 16]),
    ("roundup_power2_divisions:0", |_| ()),
    ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", |s| {
        s.roundup_power2_divisions = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8];
    }),
    // Intervals between two named ones are off.
    ("roundup_power2_divisions:[2:8,16:2,]", |s| {
        s.roundup_power2_divisions = [8, 8, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    }),
    ("roundup_power2_divisions:[65536:2]", |s| s.roundup_power2_divisions = [2; 16]),
    ("roundup_power2_divisions:[]", |_| ()),
    ("expandable_segments:True", |_| ()),
    ("expandable_segments:False", |s| s.expandable_segments = false),
    ("backend:native", |_| ()),
    ("backend:cudaMallocAsync", |s| s.backend = Backend::CudaMallocAsync),
    ("release_lock_on_cudamalloc:True", |s| s.release_lock_on_cudamalloc = true),
    ("release_lock_on_hipmalloc:True", |s| s.release_lock_on_cudamalloc = true),
    ("graph_capture_record_stream_reuse:True", |s| s.graph_capture_record_stream_reuse = true),
    ("per_process_memory_fraction:0", |s| s.per_process_memory_fraction = 0.0),
    ("per_process_memory_fraction:0.125", |s| s.per_process_memory_fraction = 0.125),
    ("per_process_memory_fraction:1", |_| ()),
    ("throw_on_cudamalloc_oom:True", |s| s.throw_on_cudamalloc_oom = true),
    ("pinned_free_catch_all:True", |s| s.pinned_free_catch_all = true),
    ("pinned_use_cuda_host_register:True", |s| s.host.use_host_register = true),
    ("pinned_use_hip_host_register:True", |s| s.host.use_host_register = true),
    ("pinned_num_register_threads:128", |s| s.host.register_threads = 128),
    ("pinned_use_background_threads:True", |s| s.host.background_threads = true),
    ("pinned_reserve_segment_size_mb:3", |s| s.host.reserve_segment_bytes = 3 * MIB),
    ("pinned_max_round_threshold_mb:8", |s| s.host.max_round_threshold = 8 * MIB),
    ("pinned_max_cached_size_mb:0", |s| s.host.max_cached_bytes = 0),
    ("expandable_segments_reserve:0.5", |_| ()),
    ("expandable_segments_reserve:64G", |_| ()),
    ("expandable_segments_reserve_by_class:[a:0.5,b:2G],backend:native", |_| ()),
];

fn large(settings: &mut Settings, bytes: u64) {
    settings.large_segment_bytes = bytes;
    settings.max_non_split_rounding_bytes = bytes;
}

#[test]
fn every_key_has_its_value() {
    for (text, change) in ROWS {
        let mut settings = Settings::DEFAULT;
        change(&mut settings);
        assert_eq!(parsed(text), settings, "{text}");
        let again = parsed(&settings.to_string());
        assert_eq!(again, settings, "{text} is written as {settings}");
    }
}

#[test]
fn every_mistake_has_pytorchs_message() {
    for (text, sentence) in [
        ("max_split_size:100", "Unrecognized key 'max_split_size' in CUDA allocator config."),
        ("max_split_size_mb=100", "Unrecognized key 'max_split_size_mb=100' in CUDA"),
        ("Backend:native", "Unrecognized key 'Backend' in CUDA allocator config."),
        (":", "Unrecognized key ':' in CUDA allocator config."),
        (",", "Unrecognized key ',' in CUDA allocator config."),
        ("backend:native,,", "Unrecognized key ',' in CUDA allocator config."),
        ("[a:1]", "Unrecognized key '[' in CUDA allocator config."),
        ("backend", "Expected separator ':' in what is said of backend, but the text ends there"),
        ("backend,native", "Expected separator ':' in what is said of backend, but got ','"),
        ("backend:native:native", "Expected separator ',' in what is said of backend, but got ':'"),
        ("backend:system", "Unknown allocator backend, options are native and cudaMallocAsync"),
        (
            "max_split_size_mb:19",
            "CachingAllocator option max_split_size_mb too small, must be >= 20, got 19",
        ),
        (
            "large_segment_size_mb:32,max_split_size_mb:31",
            "CachingAllocator option max_split_size_mb too small, must be >= 32",
        ),
        (
            "max_split_size_mb:-1",
            "max_split_size_mb is '-1', which is not a number in range; write for example \
             max_split_size_mb:512",
        ),
        (
            "garbage_collection_threshold:nan",
            "garbage_collection_threshold is 'nan', which is not a number in range; write for \
             example garbage_collection_threshold:0.8",
        ),
        (
            "per_process_memory_fraction:",
            "per_process_memory_fraction has no value; write for example \
             per_process_memory_fraction:0.8",
        ),
        (
            "sharing_threshold:inf",
            "sharing_threshold is 'inf', which is not a number in range; write for example \
             sharing_threshold:0.5",
        ),
        ("backend:", "backend has no value; write for example backend:native"),
        ("backend::", "backend is ':', which is not a name; write for example backend:native"),
        (
            "roundup_power2_divisions:x",
            "roundup_power2_divisions is 'x', which is not a number in range; write for example \
             roundup_power2_divisions:4, or [256:1,512:2,>:4]",
        ),
        (
            "pinned_num_register_threads:two",
            "pinned_num_register_threads is 'two', which is not a number in range; write for \
             example pinned_num_register_threads:8",
        ),
        (
            "expandable_segments_reserve:,",
            "expandable_segments_reserve is ',', which is not a value; write for example \
             expandable_segments_reserve:512",
        ),
        ("max_split_size_mb:many", "max_split_size_mb is 'many'"),
        ("max_split_size_mb:18446744073709551616", "is '18446744073709551616'"),
        (
            "max_non_split_rounding_mb:19",
            "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
        ),
        (
            "large_segment_size_mb:10",
            "CachingAllocator option large_segment_size_mb must be > 10 MB, got '10'",
        ),
        (
            "garbage_collection_threshold:0",
            "garbage_collect_threshold is invalid, set it in (0.0, 1.0), got '0'",
        ),
        ("garbage_collection_threshold:1.0", "garbage_collect_threshold is invalid"),
        ("garbage_collection_threshold:-0.5", "garbage_collect_threshold is invalid"),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold is 'nan'"),
        ("garbage_collection_threshold:.", "garbage_collection_threshold is '.'"),
        ("garbage_collection_threshold:1e999", "garbage_collection_threshold is '1e999'"),
        ("roundup_power2_divisions:3", "For roundups, the divisions has to be power of 2 "),
        (
            "roundup_power2_divisions:[256:3]",
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup",
        ),
        (
            "roundup_power2_divisions:[100:2]",
            "For roundups, the intervals have to be power of 2, got '100'",
        ),
        ("roundup_power2_divisions:[0:2]", "For roundups, the intervals have to be power of 2"),
        (
            "roundup_power2_divisions:[256:2",
            "Expected closing bracket ']' in ConfigTokenizer but reached end of config",
        ),
        ("roundup_power2_divisions:[", "Expected closing bracket ']' in ConfigTokenizer"),
        (
            "roundup_power2_divisions:[256:2 >:4]",
            "Expected separator ',' in what is said of roundup_power2_divisions, but got ':'",
        ),
        (
            "roundup_power2_divisions:[256:2:4]",
            "Expected separator ',' in what is said of roundup_power2_divisions, but got ':'",
        ),
        (
            "roundup_power2_divisions:[256]",
            "Expected separator ':' in what is said of roundup_power2_divisions, but got ']'",
        ),
        (
            "expandable_segments:true",
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
        ),
        (
            "backend:native,expandable_segments:1",
            "Expected 'True' or 'False' at index 6 in ConfigTokenizer but got '1'",
        ),
        ("pinned_use_background_threads:", "at index 2 in ConfigTokenizer but got ''"),
        (
            "pinned_num_register_threads:3",
            "Number of register threads has to be power of 2, got '3'",
        ),
        ("pinned_num_register_threads:0", "Number of register threads has to be power of 2"),
        (
            "pinned_num_register_threads:256",
            "Number of register threads should be less than or equal to 128, got '256'",
        ),
        (
            "pinned_reserve_segment_size_mb:0",
            "Pinned reserve segment size has to be greater than 0",
        ),
        ("pinned_reserve_segment_size_mb:17592186044416", "is '17592186044416'"),
        (
            "per_process_memory_fraction:1.5",
            "per_process_memory_fraction is invalid, set it in [0.0, 1.0], got '1.5'",
        ),
        ("per_process_memory_fraction:-0.1", "per_process_memory_fraction is invalid"),
        ("expandable_segments_reserve:[a:1", "Expected closing bracket ']'"),
        ("expandable_segments_reserve", "Expected separator ':'"),
    ] {
        refused(text, sentence);
    }
}

#[test]
fn keys_of_block_shapes_are_reset_and_others_stay() {
    let before = parsed(
        "max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:2,\
         pinned_num_register_threads:8,large_segment_size_mb:32,throw_on_cudamalloc_oom:True",
    );
    let after = before.changed_by("expandable_segments:True", "text").unwrap();
    assert_eq!((after.max_split_bytes, after.garbage_collection_threshold), (u64::MAX, 0.0));
    assert_eq!(after.roundup_power2_divisions, [0; 16]);
    assert_eq!((after.host.register_threads, after.large_segment_bytes), (8, 32 * MIB));
    assert!(after.throw_on_cudamalloc_oom);
    assert!(before.changed_by("max_split_size_mb:20", "text").is_err(), "32 at least");
}

/// Pieces of texts, chosen so that many combinations are nearly valid.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "max_split_size_mb",
        "roundup_power2_divisions",
        "garbage_collection_threshold",
        "backend",
        "native",
        "expandable_segments",
        "True",
        "pinned_num_register_threads",
        ":",
        ":",
        ":",
        ",",
        ",",
        "[",
        "]",
        ">",
        "1",
        "2",
        "64",
        "0.5",
        "256",
        " ",
        "é",
        "-",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Every text is refused with a message or accepted. The settings of an accepted text are
    /// written as a text with the same meaning.
    #[test]
    fn accepted_settings_can_be_written(pieces in prop::collection::vec(piece(), 0..14)) {
        let text = pieces.concat();
        match Settings::DEFAULT.changed_by(&text, "text") {
            Ok(settings) => prop_assert_eq!(parsed(&settings.to_string()), settings),
            Err(error) => prop_assert!(error.to_string().len() > 10),
        }
    }
}
