//! Every function of the header is either recorded by the stream sanitizer, which a row of
//! c_tests/sanitizer_*.c shows, or is in a list here, with the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Functions that query, choose or describe: they queue nothing, order nothing and allocate no
/// memory.
const NOT_RECORDED: &str = "
    version status_name last_error last_error_message last_error_native call
    set_log_callback backend_select backend_name backend_call_count backend_function
    backend_inject backend_faults backend_fault_count init is_initialized is_available
    device_primary_contexts context_check_mode_get context_check_mode_set
    device_count device_current device_set device_exchange device_of device_name device_capability
    device_properties device_can_access_peer device_enable_peer_access
    sync_debug_mode_get sync_debug_mode_set arch_list gencode_flags
    stream_create stream_from_external stream_current stream_default stream_set_current
    stream_exchange stream_device tensor_device_of stream_priority stream_id stream_native
    stream_priority_range
    stream_is_capturing
    device_locality_domains device_workqueue_concurrency sm_partition_from_device
    sm_partition_split sm_partition_split_groups sm_partition_properties sm_partition_native
    sm_partition_destroy green_context_create green_context_properties green_context_partition
    green_context_stream_create green_context_native green_context_destroy
    event_create event_device event_native
    allocation_pointer allocation_bytes allocation_device allocation_stream
    memory_info memory_stats memory_stat memory_stat_keys memory_stats_json memory_allocated
    memory_max_allocated
    memory_reserved memory_max_reserved memory_reset_peak memory_reset_accumulated
    memory_stats_push memory_stats_pop memory_summary memory_processes memory_process_list
    memory_fraction_get memory_fraction_set memory_on_out_of_memory observer_destroy
    allocator_config_get allocator_config_set allocator_backend memory_caching_enable
    memory_caching_is_enabled memory_record_history memory_frames_of
    memory_metadata_set memory_metadata_get memory_annotate memory_context_of
    memory_compile_context_push memory_compile_context_pop memory_on_event memory_on_rejection
    memory_snapshot_event_count memory_snapshot_event memory_base memory_largest_free
    memory_segment_sizes
    memory_snapshot_create memory_snapshot_destroy memory_snapshot_counts memory_snapshot_segment
    memory_snapshot_block memory_snapshot_pickle memory_snapshot_json memory_snapshot_html
    memory_snapshot_save
    pluggable_allocator_load pluggable_allocator_create pluggable_allocator_destroy
    pluggable_allocator_set_hooks pluggable_allocator_managed allocator_set_current
    memory_advise memory_prefetch memory_attach memory_range
    mem_pool_create mem_pool_destroy mem_pool_begin mem_pool_end mem_pool_wake mem_pool_snapshot
    mem_pool_id mem_pool_use_count mem_pool_blocks mem_pool_check_live
    mem_pool_from_id mem_pool_set_flags mem_pool_begin_streams mem_pool_end_streams
    torch_init torch_memory_fraction torch_base_alloc torch_begin_allocate_to_pool
    torch_end_allocate_to_pool torch_release_pool torch_mark_capture_begin
    torch_mark_capture_end
    host_register host_memory_stats host_memory_reset_peak host_memory_reset_accumulated
    file_is_supported file_open file_close file_native
    tensor_from_dlpack tensor_to_dlpack
    random_manual_seed random_manual_seed_all random_seed random_seed_all random_initial_seed
    random_state_get random_state_set random_state_get_all random_state_set_all
    generator_create generator_destroy generator_default generator_seed_get generator_seed_set
    generator_offset_get generator_offset_set generator_state_get generator_state_set
    generator_philox_state
    graph_create graph_stream graph_pool graph_pool_handle graph_debug_dump
    graph_register_generator graph_native graph_on_event graph_retain graph_data_json
    graph_data_dot graph_annotation_push graph_annotation_pop graph_capturing graph_pools
    graph_conditional_end
    nccl_version communicator_unique_id communicator_init_rank communicator_init_all
    communicator_query communicator_group_begin
    nvtx_mark nvtx_range_push nvtx_range_pop nvtx_range_start nvtx_range_end
    nvtx_device_range_start nvtx_device_range_end profiler_start profiler_stop
    monitor_utilization monitor_memory_usage monitor_temperature_c monitor_power_draw_mw
    monitor_clock_rate_mhz monitor_memory_used
    jit_create jit_create_multi jit_destroy kernel_compile kernel_destroy kernel_properties
    sanitizer_enable sanitizer_disable sanitizer_access sanitizer_report_count
    sanitizer_report_get sanitizer_report_text
";

/// Functions that another row shows, or that one process and one device cannot show.
const RECORDED_ELSEWHERE: [(&str, &str); 25] = [
    (
        "blas_handle",
        "the workspace is as memory of tcuda_malloc; the work of cuBLAS is not visible",
    ),
    ("shutdown", "the sanitizer ends with the library"),
    ("stream_destroy", "the stream lives on, and its records with it"),
    ("memory_empty_cache", "waits only for memory that it releases: no order to rely on"),
    ("host_memory_empty_cache", "as tcuda_memory_empty_cache"),
    ("torch_reset", "as tcuda_memory_empty_cache"),
    ("ort_empty_cache", "as tcuda_memory_empty_cache"),
    ("malloc_native_aligned", "as tcuda_malloc_native"),
    ("graph_capture_begin", "the first work of the capture is recorded"),
    ("graph_begin", "as tcuda_device_synchronize, then tcuda_graph_capture_begin"),
    ("graph_end", "as tcuda_graph_capture_end"),
    ("graph_capture_abort", "the captured work is forgotten, as after a failed end"),
    ("graph_reset", "as tcuda_graph_destroy"),
    ("graph_destroy", "its executable is forgotten: another may get its handle"),
    ("graphed_callable_destroy", "its memory is freed as by tcuda_record_stream and tcuda_free"),
    ("communicator_abort", "aborts work that is recorded"),
    ("communicator_destroy", "its wait is recorded, for the stream of its last work"),
    ("tensor_release", "as tcuda_free or tcuda_host_free"),
    ("event_ipc_handle", "a wait for such an event counts as a wait for everything"),
    ("event_from_ipc_handle", "as tcuda_event_ipc_handle"),
    ("green_context_set", "as tcuda_stream_wait_stream, which c_tests/green_context.c shows"),
    ("green_context_pop", "as tcuda_green_context_set"),
    ("ipc_export", "its wait is not guaranteed; the memory does not change"),
    ("ipc_import", "adds a block; its stream comes after everything"),
    ("ipc_close", "waits for the stream and removes the block"),
];

/// Further functions, for the reasons of the list above.
const RECORDED_LIKE_THEM: &str = "ipc_withdraw ipc_collect solver_handle host_unregister
    managed_malloc file_register_buffer file_unregister_buffer mem_pool_malloc_at mem_pool_restore";

/// Functions that may wait and have no row in c_tests/sync_debug_calls.c, and why.
const WITHOUT_GATE: &str = "
    shutdown: ends the library
    blas_handle solver_handle: whether they wait is up to cuBLAS and cuSOLVER
    event_from_ipc_handle ipc_import ipc_close: need two processes
    green_context_set green_context_pop: as stream_wait_stream
    managed_malloc: as the driver's allocation of a segment
    graph_conditional_begin graph_conditional_set: captured, as the work of their bodies
    mem_pool_malloc_at mem_pool_restore: as tcuda_malloc where memory is free, and as tcuda_free
    file_register_buffer file_unregister_buffer: whether they wait is up to cuFile
    graphed_callable_create graphed_callable_destroy graphed_callable_call
    graphed_callable_call_backward: graphs and copies, which have rows
    communicator_destroy communicator_abort communicator_group_end communicator_all_reduce
    communicator_broadcast communicator_reduce communicator_all_gather
    communicator_reduce_scatter communicator_send communicator_recv: NCCL decides
";

/// Functions that are called in the row of another function.
const IN_OTHER_ROWS: &str = "
    free allocation_destroy torch_free torch_reset torch_record_stream host_free ipc_withdraw
    free_on malloc_native_aligned ort_free ort_empty_cache
    tensor_release graph_destroy graph_capture_end graph_reset graph_end
";

#[test]
fn every_function_that_may_wait_is_called_beside_a_held_stream() {
    let path = repository().join("c_tests/sync_debug_calls.c");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: BTreeSet<String> = text
        .split("ROW(")
        .skip(1)
        .filter_map(|row| row.split_once(','))
        .map(|(name, _)| format!("tcuda_{name}"))
        .collect();
    let in_text = |name: &str| text.contains(&format!("tcuda_{name}("));
    for name in IN_OTHER_ROWS.split_whitespace() {
        assert!(in_text(name), "tcuda_{name} is not called in c_tests/sync_debug_calls.c");
    }
    let listed: BTreeSet<String> = [NOT_RECORDED, WITHOUT_GATE, IN_OTHER_ROWS]
        .iter()
        .flat_map(|list| list.split_whitespace())
        .map(|name| format!("tcuda_{}", name.trim_end_matches(':')))
        .collect();
    for name in declared() {
        assert!(
            listed.contains(&name) || rows.contains(&name),
            "{name} has no row in c_tests/sync_debug_calls.c: does it wait for a device?"
        );
    }
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn declared() -> BTreeSet<String> {
    let api = std::fs::read_to_string(repository().join("include/api.json")).unwrap();
    let api: serde_json::Value = serde_json::from_str(&api).unwrap();
    let functions = api["functions"].as_array().unwrap();
    assert!(functions.len() > 200);
    functions.iter().map(|function| function["name"].as_str().unwrap().to_owned()).collect()
}

/// The functions of the rows, by file.
fn shown(directory: &Path) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("sanitizer_") || !name.ends_with(".c") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let rows = text.lines().filter_map(|line| {
            let line = line.trim_start();
            let row = line.strip_prefix("RACES(").or_else(|| line.strip_prefix("ORDERS("))?;
            row.split_once(',').map(|(function, _)| function.to_string())
        });
        let rows: Vec<String> = rows.collect();
        found.insert(name, rows);
    }
    found
}

#[test]
fn every_function_is_recorded_or_listed() {
    let declared = declared();
    let shown = shown(&repository().join("c_tests"));
    let shown: BTreeSet<&str> = shown.values().flatten().map(String::as_str).collect();
    let full = |name: &str| format!("tcuda_{name}");
    let quiet = NOT_RECORDED.split_whitespace().chain(RECORDED_LIKE_THEM.split_whitespace());
    let listed: Vec<String> =
        quiet.chain(RECORDED_ELSEWHERE.iter().map(|row| row.0)).map(full).collect();
    for name in &declared {
        let is_listed = listed.contains(name);
        assert!(
            is_listed || shown.contains(name.as_str()),
            "{name} has no row in c_tests/sanitizer_*.c, and tests/observed.rs does not list it: \
             what must it record (src/gpu/sanitizer_reports.rs)?"
        );
        assert!(!is_listed || !shown.contains(name.as_str()), "{name} is listed, and has a row");
    }
    for name in shown.iter().copied().chain(listed.iter().map(String::as_str)) {
        // The sanitizer's own functions may be absent from the header.
        let is_known = declared.contains(name) || name.starts_with("tcuda_sanitizer_");
        assert!(is_known, "{name} is not in the header");
    }
    let twice = listed.iter().find(|name| listed.iter().filter(|other| other == name).count() > 1);
    assert_eq!(twice, None);
    assert!(RECORDED_ELSEWHERE.iter().all(|row| !row.1.is_empty()));
}

/// The page tells users which calls are recorded.
#[test]
fn the_page_names_every_recorded_function() {
    let page = std::fs::read_to_string(repository().join("docs/sanitizer_calls.md")).unwrap();
    for name in shown(&repository().join("c_tests")).into_values().flatten() {
        // The page writes `copy`, `comm_*` or the full name.
        let short = name.trim_start_matches("tcuda_");
        let is_named =
            page.split('`').skip(1).step_by(2).any(|word| match word.strip_suffix('*') {
                Some(start) => short.starts_with(start),
                None => word == short,
            });
        assert!(is_named, "docs/sanitizer_calls.md does not name `{short}`");
    }
}
