//! Sequences of calls of the C ABI, with right, stale and random arguments, against a model.

mod callable;
mod comm;
mod communicator;
mod copy;
mod device;
mod event;
mod file;
mod generator;
mod graph;
mod green_context;
mod history;
mod host;
mod ipc;
mod jit;
mod library;
mod limits;
mod managed;
mod mem_pool;
mod memory;
mod monitor;
mod native_stream;
mod nvtx;
mod pluggable;
mod random;
mod sanitizer;
pub mod snapshot;
mod statistics;
mod stream;
pub mod tensor;
mod torch;

pub use library::FAILURE_CODES;

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::left;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{CALLS, Mode, World};
use std::sync::atomic::Ordering;
use tcuda::ffi::device::*;
use tcuda::ffi::library::*;
use tcuda::ffi::statistics::*;
use tcuda::ffi::stream::*;

/// Decodes the arguments of one call, makes it, and compares what comes out.
type Step = fn(&mut World, &mut Input);

/// Every function of tcuda.h. New ones go to the end: inputs name a function by its place.
pub const FUNCTIONS: &[(&str, Step)] = &[
    ("tcuda_malloc", memory::malloc),
    ("tcuda_free", memory::free),
    ("tcuda_stream_create", stream::create),
    ("tcuda_stream_destroy", stream::destroy),
    ("tcuda_event_create", event::create),
    ("tcuda_event_destroy", event::destroy),
    ("tcuda_allocation_create", memory::allocation_create),
    ("tcuda_allocation_destroy", memory::allocation_destroy),
    ("tcuda_record_stream", memory::record_stream),
    ("tcuda_copy", copy::copy),
    ("tcuda_copy_2d", copy::copy_2d),
    ("tcuda_fill", copy::fill),
    ("tcuda_event_record", event::record),
    ("tcuda_event_query", event::query),
    ("tcuda_event_synchronize", event::synchronize),
    ("tcuda_event_wait", event::wait),
    ("tcuda_event_elapsed_ms", event::elapsed_ms),
    ("tcuda_event_device", event::device),
    ("tcuda_event_native", event::native),
    ("tcuda_stream_from_external", stream::from_external),
    ("tcuda_stream_current", stream::current),
    ("tcuda_stream_default", stream::default),
    ("tcuda_stream_set_current", stream::set_current),
    ("tcuda_stream_exchange", stream::exchange),
    ("tcuda_stream_query", stream::query),
    ("tcuda_stream_synchronize", stream::synchronize),
    ("tcuda_stream_wait_event", stream::wait_event),
    ("tcuda_stream_wait_stream", stream::wait_stream),
    ("tcuda_stream_record_event", stream::record_event),
    ("tcuda_stream_add_callback", stream::add_callback),
    ("tcuda_stream_device", stream::device),
    ("tcuda_stream_priority", stream::priority),
    ("tcuda_stream_id", stream::id),
    ("tcuda_stream_native", stream::native),
    ("tcuda_stream_priority_range", stream::priority_range),
    ("tcuda_allocation_pointer", memory::allocation_pointer),
    ("tcuda_allocation_bytes", memory::allocation_bytes),
    ("tcuda_allocation_device", memory::allocation_device),
    ("tcuda_allocation_stream", memory::allocation_stream),
    ("tcuda_memory_empty_cache", memory::empty_cache),
    ("tcuda_memory_info", memory::info),
    ("tcuda_memory_stats", statistics::stats),
    ("tcuda_memory_stat", statistics::stat),
    ("tcuda_memory_stats_json", statistics::json),
    ("tcuda_memory_allocated", statistics::allocated),
    ("tcuda_memory_max_allocated", statistics::max_allocated),
    ("tcuda_memory_reserved", statistics::reserved),
    ("tcuda_memory_max_reserved", statistics::max_reserved),
    ("tcuda_memory_reset_peak", statistics::reset_peak),
    ("tcuda_memory_reset_accumulated", statistics::reset_accumulated),
    ("tcuda_memory_summary", statistics::summary),
    ("tcuda_init", device::init),
    ("tcuda_is_initialized", device::is_initialized),
    ("tcuda_is_available", device::is_available),
    ("tcuda_device_count", device::count),
    ("tcuda_device_current", device::current),
    ("tcuda_device_set", device::set),
    ("tcuda_device_exchange", device::exchange),
    ("tcuda_device_of", device::of),
    ("tcuda_device_name", device::name),
    ("tcuda_device_capability", device::capability),
    ("tcuda_device_properties", device::properties),
    ("tcuda_device_can_access_peer", device::can_access_peer),
    ("tcuda_device_enable_peer_access", device::enable_peer_access),
    ("tcuda_device_synchronize", device::synchronize),
    ("tcuda_arch_list", device::arch_list),
    ("tcuda_gencode_flags", device::gencode_flags),
    ("tcuda_version", library::version),
    ("tcuda_status_name", library::status_name),
    ("tcuda_last_error", library::last_error),
    ("tcuda_last_error_message", library::last_error_message),
    ("tcuda_last_error_native", library::last_error_native),
    ("tcuda_set_log_callback", library::set_log_callback),
    ("tcuda_backend_select", library::backend_select),
    ("tcuda_backend_name", library::backend_name),
    ("tcuda_backend_call_count", library::backend_call_count),
    ("tcuda_backend_inject", library::backend_inject),
    ("tcuda_shutdown", library::shutdown),
    ("tcuda_backend_faults", library::backend_faults),
    ("tcuda_backend_fault_count", library::backend_fault_count),
    ("tcuda_host_malloc", host::malloc),
    ("tcuda_host_free", host::free),
    ("tcuda_host_register", host::register),
    ("tcuda_host_unregister", host::unregister),
    ("tcuda_memory_snapshot_create", snapshot::create),
    ("tcuda_memory_snapshot_destroy", snapshot::destroy),
    ("tcuda_memory_snapshot_counts", snapshot::counts),
    ("tcuda_memory_snapshot_segment", snapshot::segment),
    ("tcuda_memory_snapshot_block", snapshot::block),
    ("tcuda_backend_function", library::backend_function),
    ("tcuda_memory_fraction_get", limits::fraction_get),
    ("tcuda_memory_fraction_set", limits::fraction_set),
    ("tcuda_memory_on_out_of_memory", limits::on_out_of_memory),
    ("tcuda_observer_destroy", limits::observer_destroy),
    ("tcuda_allocator_config_get", limits::config_get),
    ("tcuda_allocator_config_set", limits::config_set),
    ("tcuda_memory_stats_push", limits::stats_push),
    ("tcuda_memory_stats_pop", limits::stats_pop),
    ("tcuda_mem_pool_create", mem_pool::create),
    ("tcuda_mem_pool_destroy", mem_pool::destroy),
    ("tcuda_mem_pool_begin", mem_pool::begin),
    ("tcuda_mem_pool_end", mem_pool::end),
    ("tcuda_mem_pool_sleep", mem_pool::sleep),
    ("tcuda_mem_pool_wake", mem_pool::wake),
    ("tcuda_mem_pool_snapshot", mem_pool::snapshot),
    ("tcuda_mem_pool_id", mem_pool::id),
    ("tcuda_mem_pool_use_count", mem_pool::use_count),
    ("tcuda_memory_record_history", history::record_history),
    ("tcuda_memory_frames_of", history::frames_of),
    ("tcuda_memory_snapshot_pickle", history::pickle),
    ("tcuda_memory_snapshot_json", history::json),
    ("tcuda_memory_snapshot_html", history::html),
    ("tcuda_memory_snapshot_save", history::save),
    ("tcuda_memory_processes", statistics::processes),
    ("tcuda_memory_process_list", statistics::process_list),
    ("tcuda_host_record", host::record),
    ("tcuda_host_memory_stats", host::stats),
    ("tcuda_host_memory_reset_peak", host::reset_peak),
    ("tcuda_host_memory_reset_accumulated", host::reset_accumulated),
    ("tcuda_host_memory_empty_cache", host::empty_cache),
    ("tcuda_torch_malloc", torch::malloc),
    ("tcuda_torch_free", torch::free),
    ("tcuda_torch_init", torch::init),
    ("tcuda_torch_reset", torch::reset),
    ("tcuda_torch_memory_fraction", torch::memory_fraction),
    ("tcuda_torch_base_alloc", torch::base_alloc),
    ("tcuda_torch_record_stream", torch::record_stream),
    ("tcuda_torch_begin_allocate_to_pool", torch::begin_allocate_to_pool),
    ("tcuda_torch_end_allocate_to_pool", torch::end_allocate_to_pool),
    ("tcuda_torch_release_pool", torch::release_pool),
    ("tcuda_pluggable_allocator_load", pluggable::load),
    ("tcuda_pluggable_allocator_create", pluggable::create),
    ("tcuda_pluggable_allocator_destroy", pluggable::destroy),
    ("tcuda_pluggable_allocator_set_hooks", pluggable::set_hooks),
    ("tcuda_allocator_set_current", pluggable::set_current),
    ("tcuda_allocator_backend", pluggable::backend),
    ("tcuda_memory_caching_enable", pluggable::caching_enable),
    ("tcuda_memory_caching_is_enabled", pluggable::caching_is_enabled),
    ("tcuda_tensor_release", tensor::release),
    ("tcuda_tensor_from_dlpack", tensor::from_dlpack),
    ("tcuda_tensor_to_dlpack", tensor::to_dlpack),
    ("tcuda_random_manual_seed", generator::manual_seed),
    ("tcuda_random_manual_seed_all", generator::manual_seed_all),
    ("tcuda_random_seed", generator::seed),
    ("tcuda_random_seed_all", generator::seed_all),
    ("tcuda_random_initial_seed", generator::initial_seed),
    ("tcuda_random_state_get", generator::state_get),
    ("tcuda_random_state_set", generator::state_set),
    ("tcuda_random_state_get_all", generator::state_get_all),
    ("tcuda_random_state_set_all", generator::state_set_all),
    ("tcuda_generator_create", generator::create),
    ("tcuda_generator_destroy", generator::destroy),
    ("tcuda_generator_default", generator::default),
    ("tcuda_generator_seed_get", generator::seed_get),
    ("tcuda_generator_seed_set", generator::seed_set),
    ("tcuda_generator_offset_get", generator::offset_get),
    ("tcuda_generator_offset_set", generator::offset_set),
    ("tcuda_generator_state_get", generator::generator_state_get),
    ("tcuda_generator_state_set", generator::generator_state_set),
    ("tcuda_generator_philox_state", generator::philox_state),
    ("tcuda_random_uniform", random::uniform),
    ("tcuda_random_normal", random::normal),
    ("tcuda_random_integers", random::integers),
    ("tcuda_random_integers_from", random::integers_from),
    ("tcuda_random_integers_all", random::integers_all),
    ("tcuda_random_bernoulli", random::bernoulli),
    ("tcuda_random_bernoulli_tensor", random::bernoulli_tensor),
    ("tcuda_random_exponential", random::exponential),
    ("tcuda_random_log_normal", random::log_normal),
    ("tcuda_random_cauchy", random::cauchy),
    ("tcuda_random_geometric", random::geometric),
    ("tcuda_graph_create", graph::create),
    ("tcuda_graph_destroy", graph::destroy),
    ("tcuda_graph_capture_begin", graph::capture_begin),
    ("tcuda_graph_capture_end", graph::capture_end),
    ("tcuda_graph_capture_abort", graph::capture_abort),
    ("tcuda_graph_instantiate", graph::instantiate),
    ("tcuda_graph_update", graph::update),
    ("tcuda_graph_replay", graph::replay),
    ("tcuda_graph_reset", graph::reset),
    ("tcuda_graph_pool", graph::pool),
    ("tcuda_graph_pool_handle", graph::pool_handle),
    ("tcuda_graph_debug_dump", graph::debug_dump),
    ("tcuda_graph_native", graph::native),
    ("tcuda_stream_is_capturing", graph::is_capturing),
    ("tcuda_graph_stream", graph::stream),
    ("tcuda_graph_register_generator", graph::register_generator),
    ("tcuda_graph_on_event", graph::on_event),
    ("tcuda_graph_retain", graph::retain),
    ("tcuda_graph_data_json", graph::data_json),
    ("tcuda_graph_data_dot", graph::data_dot),
    ("tcuda_graph_annotation_push", graph::annotation_push),
    ("tcuda_graph_annotation_pop", graph::annotation_pop),
    ("tcuda_graph_capturing", graph::capturing),
    ("tcuda_graph_pools", graph::pools),
    ("tcuda_graphed_callable_create", callable::create),
    ("tcuda_graphed_callable_destroy", callable::destroy),
    ("tcuda_graphed_callable_call", callable::call),
    ("tcuda_graphed_callable_call_backward", callable::call_backward),
    ("tcuda_comm_broadcast", comm::broadcast),
    ("tcuda_comm_broadcast_into", comm::broadcast_into),
    ("tcuda_comm_broadcast_coalesced", comm::broadcast_coalesced),
    ("tcuda_comm_reduce_add", comm::reduce_add),
    ("tcuda_comm_reduce_add_into", comm::reduce_add_into),
    ("tcuda_comm_reduce_add_coalesced", comm::reduce_add_coalesced),
    ("tcuda_comm_scatter", comm::scatter),
    ("tcuda_comm_scatter_into", comm::scatter_into),
    ("tcuda_comm_gather", comm::gather),
    ("tcuda_comm_gather_into", comm::gather_into),
    ("tcuda_nccl_version", communicator::version),
    ("tcuda_communicator_unique_id", communicator::unique_id),
    ("tcuda_communicator_init_rank", communicator::init_rank),
    ("tcuda_communicator_init_all", communicator::init_all),
    ("tcuda_communicator_destroy", communicator::destroy),
    ("tcuda_communicator_abort", communicator::abort),
    ("tcuda_communicator_query", communicator::query),
    ("tcuda_communicator_group_begin", communicator::group_begin),
    ("tcuda_communicator_group_end", communicator::group_end),
    ("tcuda_communicator_all_reduce", communicator::all_reduce),
    ("tcuda_communicator_broadcast", communicator::broadcast),
    ("tcuda_communicator_reduce", communicator::reduce),
    ("tcuda_communicator_all_gather", communicator::all_gather),
    ("tcuda_communicator_reduce_scatter", communicator::reduce_scatter),
    ("tcuda_communicator_send", communicator::send),
    ("tcuda_communicator_recv", communicator::recv),
    ("tcuda_ipc_export", ipc::export),
    ("tcuda_ipc_import", ipc::import),
    ("tcuda_ipc_close", ipc::close),
    ("tcuda_ipc_collect", ipc::collect),
    ("tcuda_ipc_withdraw", ipc::withdraw),
    ("tcuda_event_ipc_handle", ipc::event_handle),
    ("tcuda_event_from_ipc_handle", ipc::event_from_handle),
    ("tcuda_device_primary_contexts", device::primary_contexts),
    ("tcuda_context_check_mode_get", device::context_check_mode_get),
    ("tcuda_context_check_mode_set", device::context_check_mode_set),
    ("tcuda_sync_debug_mode_get", device::sync_debug_mode_get),
    ("tcuda_sync_debug_mode_set", device::sync_debug_mode_set),
    ("tcuda_blas_handle", device::blas_handle),
    ("tcuda_solver_handle", device::solver_handle),
    ("tcuda_nvtx_mark", nvtx::mark),
    ("tcuda_nvtx_range_push", nvtx::push),
    ("tcuda_nvtx_range_pop", nvtx::pop),
    ("tcuda_nvtx_range_start", nvtx::start),
    ("tcuda_nvtx_range_end", nvtx::end),
    ("tcuda_nvtx_device_range_start", nvtx::device_start),
    ("tcuda_nvtx_device_range_end", nvtx::device_end),
    ("tcuda_profiler_start", nvtx::profiler_start),
    ("tcuda_profiler_stop", nvtx::profiler_stop),
    ("tcuda_monitor_utilization", monitor::utilization),
    ("tcuda_monitor_memory_usage", monitor::memory_usage),
    ("tcuda_monitor_temperature_c", monitor::temperature_c),
    ("tcuda_monitor_power_draw_mw", monitor::power_draw_mw),
    ("tcuda_monitor_clock_rate_mhz", monitor::clock_rate_mhz),
    ("tcuda_monitor_memory_used", monitor::memory_used),
    ("tcuda_jit_create", jit::create),
    ("tcuda_jit_create_multi", jit::create_multi),
    ("tcuda_jit_destroy", jit::destroy),
    ("tcuda_jit_call", jit::call),
    ("tcuda_kernel_compile", jit::compile),
    ("tcuda_kernel_destroy", jit::kernel_destroy),
    ("tcuda_kernel_launch", jit::launch),
    ("tcuda_sanitizer_enable", sanitizer::enable),
    ("tcuda_sanitizer_disable", sanitizer::disable),
    ("tcuda_sanitizer_access", sanitizer::access),
    ("tcuda_sanitizer_report_count", sanitizer::report_count),
    ("tcuda_sanitizer_report_get", sanitizer::report_get),
    ("tcuda_sanitizer_report_text", sanitizer::report_text),
    ("tcuda_memory_stat_keys", statistics::keys),
    ("tcuda_stream_record_new_event", stream::record_new_event),
    ("tcuda_tensor_device_of", tensor::device_of),
    ("tcuda_graph_begin", graph::begin),
    ("tcuda_graph_end", graph::end),
    ("tcuda_device_locality_domains", green_context::locality_domains),
    ("tcuda_device_workqueue_concurrency", green_context::workqueue_concurrency),
    ("tcuda_sm_partition_from_device", green_context::from_device),
    ("tcuda_sm_partition_split", green_context::split),
    ("tcuda_sm_partition_split_groups", green_context::split_groups),
    ("tcuda_sm_partition_properties", green_context::partition_properties),
    ("tcuda_sm_partition_native", green_context::partition_native),
    ("tcuda_sm_partition_destroy", green_context::partition_destroy),
    ("tcuda_green_context_create", green_context::create),
    ("tcuda_green_context_properties", green_context::properties),
    ("tcuda_green_context_partition", green_context::partition),
    ("tcuda_green_context_stream_create", green_context::stream_create),
    ("tcuda_green_context_set", green_context::set),
    ("tcuda_green_context_pop", green_context::pop),
    ("tcuda_green_context_native", green_context::native),
    ("tcuda_green_context_destroy", green_context::destroy),
    ("tcuda_managed_malloc", managed::malloc),
    ("tcuda_pluggable_allocator_managed", managed::allocator),
    ("tcuda_memory_advise", managed::advise),
    ("tcuda_memory_prefetch", managed::prefetch),
    ("tcuda_memory_attach", managed::attach),
    ("tcuda_memory_range", managed::range),
    ("tcuda_file_is_supported", file::is_supported),
    ("tcuda_file_open", file::open),
    ("tcuda_file_close", file::close),
    ("tcuda_file_read", file::read),
    ("tcuda_file_write", file::write),
    ("tcuda_file_register_buffer", file::register_buffer),
    ("tcuda_file_unregister_buffer", file::unregister_buffer),
    ("tcuda_file_native", file::native),
    ("tcuda_graph_conditional_begin", graph::conditional_begin),
    ("tcuda_graph_conditional_set", graph::conditional_set),
    ("tcuda_graph_conditional_end", graph::conditional_end),
    ("tcuda_kernel_properties", jit::properties),
    ("tcuda_memory_metadata_set", history::metadata_set),
    ("tcuda_memory_metadata_get", history::metadata_get),
    ("tcuda_memory_annotate", history::annotate),
    ("tcuda_mem_pool_malloc_at", mem_pool::malloc_at),
    ("tcuda_mem_pool_blocks", mem_pool::blocks),
    ("tcuda_mem_pool_restore", mem_pool::restore),
    ("tcuda_mem_pool_check_live", mem_pool::check_live),
    ("tcuda_memory_on_event", history::on_event),
    ("tcuda_memory_snapshot_event_count", history::event_count),
    ("tcuda_memory_snapshot_event", history::event),
    ("tcuda_memory_context_of", history::context_of),
    ("tcuda_memory_compile_context_push", history::compile_context_push),
    ("tcuda_memory_compile_context_pop", history::compile_context_pop),
    ("tcuda_mem_pool_from_id", mem_pool::from_id),
    ("tcuda_mem_pool_set_flags", mem_pool::set_flags),
    ("tcuda_mem_pool_begin_streams", mem_pool::begin_streams),
    ("tcuda_mem_pool_end_streams", mem_pool::end_streams),
    ("tcuda_memory_largest_free", statistics::largest_free),
    ("tcuda_memory_segment_sizes", statistics::segment_sizes),
    ("tcuda_memory_base", memory::base),
    ("tcuda_torch_mark_capture_begin", torch::mark_capture_begin),
    ("tcuda_torch_mark_capture_end", torch::mark_capture_end),
    ("tcuda_memory_on_rejection", limits::on_rejection),
    ("tcuda_malloc_native", native_stream::malloc_native),
    ("tcuda_malloc_native_aligned", native_stream::malloc_native_aligned),
    ("tcuda_free_on", native_stream::free_on),
    ("tcuda_ort_malloc", native_stream::ort_malloc),
    ("tcuda_ort_free", native_stream::ort_free),
    ("tcuda_ort_empty_cache", native_stream::ort_empty_cache),
    ("tcuda_call", library::call),
];

/// More calls than this make an input slow, not better.
const LONGEST: usize = 300;

/// Runs the calls of a program.
pub fn run(world: &mut World, input: &mut Input) {
    for _ in 0..LONGEST {
        if input.is_empty() {
            break;
        }
        let (_, step) = FUNCTIONS[input.below(FUNCTIONS.len())];
        step(world, input);
    }
}

/// The library's counts must be those of the model.
pub fn check_memory(world: &World) {
    if !world.is_initialized() {
        return;
    }
    for device in 0..world.devices() {
        let own = || world.blocks.iter().filter(|block| block.device == device);
        let rounded: usize = own().map(|block| block.counted).sum();
        let mut allocated = 0;
        assert_eq!(status_of!(tcuda_memory_allocated(device, &mut allocated)), status::OK);
        let is_right = if world.has_whole { allocated >= rounded } else { allocated == rounded };
        assert!(is_right, "{allocated} allocated bytes of device {device}, {rounded} expected");
        let blocks = own().filter(|block| block.ptr != 0).count();
        let key = c"allocation.all.current".as_ptr();
        let mut value = 0;
        assert_eq!(status_of!(tcuda_memory_stat(device, key, &mut value)), status::OK);
        assert_eq!(value, blocks as u64, "blocks of device {device}");
    }
}

/// Ends a program: shuts down, and compares what is left with what must be. `counted`: the live
/// handles, where that is known.
pub fn finish(world: &mut World, counted: Option<isize>) {
    let silenced = status_of!(tcuda_set_log_callback(0, None, std::ptr::null_mut(), None));
    assert_eq!(silenced, status::OK);
    if world.is_initialized() {
        // The thread would take its current device along.
        let set = status_of!(tcuda_device_set(0));
        assert!(set == status::OK || world.lost || world.mode != Mode::Strict);
    }
    let mut live = Out::<usize>::new();
    let ended = status_of!(tcuda_shutdown(live.ptr()));
    assert!(world.judge(ended, &Expect::default()), "shutdown: {}", crate::world::last_error());
    assert!(ended != status::OK || history::references() == 0, "contexts outlive a shutdown");
    let live = live.check(true);
    if let Some(counted) = counted {
        assert_eq!(live, usize::try_from(counted).ok(), "live handles at shutdown");
    }
    assert!(!world.is_initialized());
    if let Some(stream) = world.streams.first() {
        let handle = stream.handle as *mut tcuda_stream;
        let mut id = 0;
        assert_eq!(status_of!(tcuda_stream_id(handle, &mut id)), status::INVALID_HANDLE);
    }
    let count = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
    assert_eq!(count(&CALLS.destroyed), count(&CALLS.owed), "destructors of callbacks");
    assert!(count(&CALLS.ran) <= count(&CALLS.added), "callbacks ran twice");
    if !world.lost && world.mode == Mode::Strict && !world.was_shut_down {
        assert_eq!(count(&CALLS.ran), count(&CALLS.added), "callbacks that never ran");
    }
    left::check(world.lost);
}

/// One program in one thread; with `Mode::Faults` the input begins with rules of failures.
pub fn program(mode: Mode, data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::begin(mode, input.u8().into());
    if mode == Mode::Faults {
        library::inject_some(&mut input);
    }
    run(&mut world, &mut input);
    if mode == Mode::Faults {
        // What was refused and lost so far stays known until the shutdown.
        assert_eq!(status_of!(tcuda_backend_faults(std::ptr::null())), status::OK);
    }
    if !world.lost {
        check_memory(&world);
    }
    let counted = world.counted;
    finish(&mut world, Some(counted));
}
