enum {
    TCUDA_VERSION_MAJOR = 0,
    TCUDA_VERSION_MINOR = 1,
    TCUDA_VERSION_PATCH = 0,
    TCUDA_VERSION = 1000
};
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUctx_st;
struct CUgreenCtx_st;
struct cublasContext;
struct cusolverDnContext;
struct DLManagedTensorVersioned;
enum {
    TCUDA_CURRENT_DEVICE = -1
};
enum {
    TCUDA_CPU_DEVICE = -2
};
typedef enum tcuda_status {
    TCUDA_STATUS_OK = 0,
    TCUDA_STATUS_INVALID_ARGUMENT = 1,
    TCUDA_STATUS_INVALID_HANDLE = 2,
    TCUDA_STATUS_INVALID_POINTER = 3,
    TCUDA_STATUS_INVALID_DEVICE = 4,
    TCUDA_STATUS_INVALID_STATE = 5,
    TCUDA_STATUS_NOT_READY = 6,
    TCUDA_STATUS_WOULD_SYNCHRONIZE = 7,
    TCUDA_STATUS_OUT_OF_MEMORY = 20,
    TCUDA_STATUS_OUT_OF_HOST_MEMORY = 21,
    TCUDA_STATUS_NO_DRIVER = 22,
    TCUDA_STATUS_NO_DEVICE = 23,
    TCUDA_STATUS_NO_LIBRARY = 24,
    TCUDA_STATUS_NOT_SUPPORTED = 25,
    TCUDA_STATUS_FORKED = 26,
    TCUDA_STATUS_FILE_ERROR = 27,
    TCUDA_STATUS_CUDA_ERROR = 40,
    TCUDA_STATUS_DEVICE_LOST = 41,
    TCUDA_STATUS_NVRTC_ERROR = 42,
    TCUDA_STATUS_COMPILE_ERROR = 43,
    TCUDA_STATUS_NVML_ERROR = 44,
    TCUDA_STATUS_NCCL_ERROR = 45,
    TCUDA_STATUS_CUBLAS_ERROR = 46,
    TCUDA_STATUS_CALLBACK_FAILED = 47,
    TCUDA_STATUS_PEER_GONE = 48,
    TCUDA_STATUS_CUFILE_ERROR = 49,
    TCUDA_STATUS_CAPTURING = 60,
    TCUDA_STATUS_CAPTURE_INVALIDATED = 61,
    TCUDA_STATUS_INTERNAL = 99
} tcuda_status;
typedef struct tcuda_observer tcuda_observer;
typedef int32_t tcuda_log_level;
enum {
    TCUDA_LOG_OFF = 0,
    TCUDA_LOG_ERROR = 1,
    TCUDA_LOG_WARNING = 2,
    TCUDA_LOG_INFO = 3,
    TCUDA_LOG_DEBUG = 4
};
typedef void (*tcuda_log_fn)(void *user_data, tcuda_log_level level, const char *message);
typedef void (*tcuda_destroy_fn)(void *user_data);
typedef struct tcuda_error {
    size_t struct_size;
    tcuda_status status;
    int32_t native_code;
    char message[2048];
} tcuda_error;
uint32_t tcuda_version(void);
const char *tcuda_status_name(int32_t status);
const char *tcuda_last_error(void);
tcuda_status tcuda_last_error_message(char *buf, size_t len, size_t *needed);
int32_t tcuda_last_error_native(void);
tcuda_status tcuda_set_log_callback(tcuda_log_level level, tcuda_log_fn callback, void *user_data,
    tcuda_destroy_fn destroy);
tcuda_status tcuda_backend_select(const char *name, const char *options);
const char *tcuda_backend_name(void);
tcuda_status tcuda_backend_call_count(const char *function, uint64_t *count);
tcuda_status tcuda_backend_function(const char *function, void **address);
tcuda_status tcuda_backend_inject(const char *function, uint64_t nth, int32_t result,
    int32_t forever);
tcuda_status tcuda_backend_faults(const char *rules);
tcuda_status tcuda_backend_fault_count(uint64_t *fired);
tcuda_status tcuda_shutdown(size_t *live_handles);
tcuda_status tcuda_call(const char *function, const uint64_t *arguments, size_t count,
    tcuda_error *error);
tcuda_status tcuda_observer_destroy(tcuda_observer *observer);
enum {
    TCUDA_SYNC_DEBUG_DEFAULT = 0,
    TCUDA_SYNC_DEBUG_WARN = 1,
    TCUDA_SYNC_DEBUG_ERROR = 2
};
typedef int32_t tcuda_context_check_mode;
enum {
    TCUDA_CONTEXT_CHECK_DEFAULT = 0,
    TCUDA_CONTEXT_CHECK_WARN = 1,
    TCUDA_CONTEXT_CHECK_ERROR = 2
};
typedef struct tcuda_device_info {
    size_t struct_size;
    char name[256];
    uint8_t uuid[16];
    uint64_t total_memory_bytes;
    uint64_t l2_cache_bytes;
    uint64_t shared_memory_per_block_bytes;
    uint64_t shared_memory_per_block_optin_bytes;
    uint64_t shared_memory_per_multiprocessor_bytes;
    int32_t major;
    int32_t minor;
    int32_t multi_processor_count;
    int32_t warp_size;
    int32_t max_threads_per_block;
    int32_t max_threads_per_multi_processor;
    int32_t max_block_dim[3];
    int32_t max_grid_dim[3];
    int32_t regs_per_block;
    int32_t regs_per_multiprocessor;
    int32_t clock_rate_khz;
    int32_t memory_clock_rate_khz;
    int32_t memory_bus_width_bits;
    int32_t copy_engine_count;
    int32_t pci_domain_id;
    int32_t pci_bus_id;
    int32_t pci_device_id;
    int32_t numa_node;
    int32_t driver_version;
    int32_t is_integrated;
    int32_t is_multi_gpu_board;
    int32_t is_mig;
    int32_t has_ecc;
    int32_t has_cooperative_launch;
    int32_t has_gpu_direct_rdma;
    int32_t has_fabric_handles;
    int32_t has_managed_memory;
    int32_t has_concurrent_managed_access;
    int32_t has_virtual_memory;
    int32_t has_memory_pools;
} tcuda_device_info;
tcuda_status tcuda_init(void);
tcuda_status tcuda_is_initialized(bool *initialized);
tcuda_status tcuda_is_available(bool *available);
tcuda_status tcuda_device_count(int32_t *count);
tcuda_status tcuda_device_current(int32_t *device);
tcuda_status tcuda_device_set(int32_t device);
tcuda_status tcuda_device_primary_contexts(int32_t *devices, size_t capacity, size_t *count);
tcuda_status tcuda_context_check_mode_get(tcuda_context_check_mode *mode);
tcuda_status tcuda_context_check_mode_set(tcuda_context_check_mode mode);
tcuda_status tcuda_device_exchange(int32_t device, int32_t *previous);
tcuda_status tcuda_device_of(const void *ptr, int32_t *device);
tcuda_status tcuda_device_name(int32_t device, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_device_capability(int32_t device, int32_t *major, int32_t *minor);
tcuda_status tcuda_device_properties(int32_t device, tcuda_device_info *info);
tcuda_status tcuda_device_can_access_peer(int32_t device, int32_t peer, bool *possible);
tcuda_status tcuda_device_enable_peer_access(int32_t device, int32_t peer);
tcuda_status tcuda_device_synchronize(int32_t device);
tcuda_status tcuda_sync_debug_mode_get(int32_t *mode);
tcuda_status tcuda_sync_debug_mode_set(int32_t mode);
tcuda_status tcuda_arch_list(char *buf, size_t len, size_t *needed);
tcuda_status tcuda_gencode_flags(char *buf, size_t len, size_t *needed);
tcuda_status tcuda_blas_handle(int32_t device, struct cublasContext **cublas_handle);
tcuda_status tcuda_solver_handle(int32_t device, struct cusolverDnContext **cusolver_handle);
enum {
    TCUDA_EVENT_TIMING = 1,
    TCUDA_EVENT_BLOCKING = 2,
    TCUDA_EVENT_INTERPROCESS = 4,
    TCUDA_EVENT_EXTERNAL = 8
};
typedef struct tcuda_event tcuda_event;
typedef struct tcuda_stream tcuda_stream;
typedef void (*tcuda_host_fn)(void *user_data);
typedef struct tcuda_ipc_event_handle {
    uint8_t bytes[64];
} tcuda_ipc_event_handle;
tcuda_status tcuda_stream_create(int32_t device, int32_t priority, tcuda_stream **stream);
tcuda_status tcuda_stream_destroy(tcuda_stream *stream);
tcuda_status tcuda_stream_from_external(int32_t device, struct CUstream_st *cu_stream,
    tcuda_stream **stream);
tcuda_status tcuda_stream_current(int32_t device, tcuda_stream **stream);
tcuda_status tcuda_stream_default(int32_t device, tcuda_stream **stream);
tcuda_status tcuda_stream_set_current(tcuda_stream *stream);
tcuda_status tcuda_stream_exchange(tcuda_stream *stream, tcuda_stream **previous,
    int32_t *previous_device);
tcuda_status tcuda_stream_query(tcuda_stream *stream, bool *done);
tcuda_status tcuda_stream_synchronize(tcuda_stream *stream);
tcuda_status tcuda_stream_wait_event(tcuda_stream *stream, tcuda_event *event);
tcuda_status tcuda_stream_wait_stream(tcuda_stream *stream, tcuda_stream *other);
tcuda_status tcuda_stream_record_event(tcuda_stream *stream, tcuda_event *event);
tcuda_status tcuda_stream_record_new_event(tcuda_stream *stream, uint32_t flags,
    tcuda_event **event);
tcuda_status tcuda_stream_add_callback(tcuda_stream *stream, tcuda_host_fn callback,
    void *user_data, tcuda_destroy_fn destroy);
tcuda_status tcuda_stream_device(tcuda_stream *stream, int32_t *device);
tcuda_status tcuda_stream_priority(tcuda_stream *stream, int32_t *priority);
tcuda_status tcuda_stream_id(tcuda_stream *stream, int64_t *id);
tcuda_status tcuda_stream_native(tcuda_stream *stream, struct CUstream_st **cu_stream);
tcuda_status tcuda_stream_priority_range(int32_t device, int32_t *least, int32_t *greatest);
tcuda_status tcuda_event_create(uint32_t flags, tcuda_event **event);
tcuda_status tcuda_event_destroy(tcuda_event *event);
tcuda_status tcuda_event_record(tcuda_event *event, tcuda_stream *stream);
tcuda_status tcuda_event_query(tcuda_event *event, bool *done);
tcuda_status tcuda_event_synchronize(tcuda_event *event);
tcuda_status tcuda_event_wait(tcuda_event *event, tcuda_stream *stream);
tcuda_status tcuda_event_elapsed_ms(tcuda_event *start, tcuda_event *end, float *elapsed_ms);
tcuda_status tcuda_event_device(tcuda_event *event, int32_t *device);
tcuda_status tcuda_event_native(tcuda_event *event, struct CUevent_st **cu_event);
tcuda_status tcuda_event_ipc_handle(tcuda_event *event, tcuda_ipc_event_handle *handle);
tcuda_status tcuda_event_from_ipc_handle(int32_t device, const tcuda_ipc_event_handle *handle,
    tcuda_event **event);
tcuda_status tcuda_copy(void *dst, const void *src, size_t bytes, tcuda_stream *stream);
tcuda_status tcuda_copy_2d(void *dst, size_t dst_pitch_bytes, const void *src,
    size_t src_pitch_bytes, size_t width_bytes, size_t rows, tcuda_stream *stream);
tcuda_status tcuda_fill(void *ptr, const void *value, size_t value_bytes, size_t count,
    tcuda_stream *stream);
enum {
    TCUDA_SM_SPLIT_IGNORE_COSCHEDULING = 1,
    TCUDA_SM_SPLIT_MAX_CLUSTER = 2,
    TCUDA_SM_GROUP_BACKFILL = 1,
    TCUDA_SM_GROUP_LOCALITY_DOMAIN = 2
};
enum {
    TCUDA_WORKQUEUE_DEFAULT = 0,
    TCUDA_WORKQUEUE_DEVICE = 1,
    TCUDA_WORKQUEUE_BALANCED = 2
};
typedef struct tcuda_green_context tcuda_green_context;
typedef struct tcuda_sm_partition tcuda_sm_partition;
typedef struct tcuda_sm_group {
    uint32_t sm_count;
    uint32_t coscheduled_sm_count;
    uint32_t preferred_coscheduled_sm_count;
    uint32_t flags;
    uint32_t locality_domain;
} tcuda_sm_group;
typedef struct tcuda_sm_partition_info {
    size_t struct_size;
    int32_t device;
    uint32_t sm_count;
    uint32_t min_part_sm_count;
    uint32_t coscheduled_sm_count;
    int32_t locality_domain;
} tcuda_sm_partition_info;
typedef struct tcuda_green_context_options {
    size_t struct_size;
    uint32_t sm_count;
    int32_t workqueue_scope;
    uint32_t workqueue_concurrency;
} tcuda_green_context_options;
tcuda_status tcuda_device_locality_domains(int32_t device, int32_t *count);
tcuda_status tcuda_device_workqueue_concurrency(int32_t device, uint32_t *count);
tcuda_status tcuda_sm_partition_from_device(int32_t device, tcuda_sm_partition **partition);
tcuda_status tcuda_sm_partition_split(tcuda_sm_partition *partition, uint32_t min_sm_count,
    uint32_t flags, uint32_t capacity, tcuda_sm_partition **partitions, uint32_t *count,
    tcuda_sm_partition **remainder);
tcuda_status tcuda_sm_partition_split_groups(tcuda_sm_partition *partition,
    const tcuda_sm_group *groups, uint32_t count, tcuda_sm_partition **partitions,
    tcuda_sm_partition **remainder);
tcuda_status tcuda_sm_partition_properties(tcuda_sm_partition *partition,
    tcuda_sm_partition_info *info);
tcuda_status tcuda_sm_partition_native(tcuda_sm_partition *partition, void *buf, size_t len,
    size_t *needed);
tcuda_status tcuda_sm_partition_destroy(tcuda_sm_partition *partition);
tcuda_status tcuda_green_context_create(int32_t device, tcuda_sm_partition *partition,
    const tcuda_green_context_options *options, tcuda_green_context **context);
tcuda_status tcuda_green_context_properties(tcuda_green_context *context,
    tcuda_sm_partition_info *info);
tcuda_status tcuda_green_context_partition(tcuda_green_context *context,
    tcuda_sm_partition **partition);
tcuda_status tcuda_green_context_stream_create(tcuda_green_context *context, tcuda_stream **stream);
tcuda_status tcuda_green_context_set(tcuda_green_context *context);
tcuda_status tcuda_green_context_pop(tcuda_green_context *context);
tcuda_status tcuda_green_context_native(tcuda_green_context *context, struct CUgreenCtx_st **green,
    struct CUctx_st **cu_context);
tcuda_status tcuda_green_context_destroy(tcuda_green_context *context);
typedef struct tcuda_allocation tcuda_allocation;
tcuda_status tcuda_malloc(size_t bytes, int32_t device, tcuda_stream *stream, void **ptr);
tcuda_status tcuda_free(void *ptr);
tcuda_status tcuda_record_stream(void *ptr, tcuda_stream *stream);
tcuda_status tcuda_allocation_create(size_t bytes, int32_t device, tcuda_stream *stream,
    tcuda_allocation **allocation);
tcuda_status tcuda_allocation_destroy(tcuda_allocation *allocation);
tcuda_status tcuda_allocation_pointer(tcuda_allocation *allocation, void **ptr);
tcuda_status tcuda_allocation_bytes(tcuda_allocation *allocation, size_t *bytes);
tcuda_status tcuda_allocation_device(tcuda_allocation *allocation, int32_t *device);
tcuda_status tcuda_allocation_stream(tcuda_allocation *allocation, tcuda_stream **stream);
tcuda_status tcuda_memory_empty_cache(void);
tcuda_status tcuda_memory_base(const void *ptr, void **base, size_t *bytes);
tcuda_status tcuda_memory_info(int32_t device, size_t *free_bytes, size_t *total_bytes);
typedef struct tcuda_stat {
    uint64_t current;
    uint64_t peak;
    uint64_t allocated;
    uint64_t freed;
} tcuda_stat;
typedef struct tcuda_stat_by_pool {
    tcuda_stat all;
    tcuda_stat small_pool;
    tcuda_stat large_pool;
} tcuda_stat_by_pool;
typedef struct tcuda_memory_statistics {
    size_t struct_size;
    tcuda_stat_by_pool allocation;
    tcuda_stat_by_pool allocated_bytes;
    tcuda_stat_by_pool active;
    tcuda_stat_by_pool active_bytes;
    tcuda_stat_by_pool requested_bytes;
    tcuda_stat_by_pool segment;
    tcuda_stat_by_pool reserved_bytes;
    tcuda_stat_by_pool inactive_split;
    tcuda_stat_by_pool inactive_split_bytes;
    tcuda_stat oversize_allocations;
    tcuda_stat oversize_segments;
    uint64_t num_alloc_retries;
    uint64_t num_ooms;
    uint64_t num_sync_all_streams;
    uint64_t num_device_alloc;
    uint64_t num_device_free;
    uint64_t max_split_size;
    uint64_t num_oom_rejections;
} tcuda_memory_statistics;
typedef struct tcuda_segment_size {
    struct CUstream_st *cu_stream;
    uint64_t bytes;
    int32_t is_small;
} tcuda_segment_size;
typedef struct tcuda_process {
    uint64_t pid;
    uint64_t used_bytes;
} tcuda_process;
tcuda_status tcuda_memory_stats(int32_t device, tcuda_memory_statistics *stats);
tcuda_status tcuda_memory_largest_free(int32_t device, size_t *bytes);
tcuda_status tcuda_memory_segment_sizes(int32_t device, tcuda_segment_size *sizes, size_t capacity,
    size_t *count);
tcuda_status tcuda_memory_stat(int32_t device, const char *key, uint64_t *value);
tcuda_status tcuda_memory_stat_keys(int32_t device, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_memory_stats_json(int32_t device, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_memory_allocated(int32_t device, size_t *bytes);
tcuda_status tcuda_memory_max_allocated(int32_t device, size_t *bytes);
tcuda_status tcuda_memory_reserved(int32_t device, size_t *bytes);
tcuda_status tcuda_memory_max_reserved(int32_t device, size_t *bytes);
tcuda_status tcuda_memory_reset_peak(int32_t device);
tcuda_status tcuda_memory_reset_accumulated(int32_t device);
tcuda_status tcuda_memory_stats_push(int32_t device);
tcuda_status tcuda_memory_stats_pop(int32_t device, tcuda_memory_statistics *stats);
tcuda_status tcuda_memory_summary(int32_t device, int32_t abbreviated, char *buf, size_t len,
    size_t *needed);
tcuda_status tcuda_memory_processes(int32_t device, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_memory_process_list(int32_t device, tcuda_process *processes, size_t capacity,
    size_t *count);
typedef int32_t (*tcuda_out_of_memory_fn)(void *user_data, int32_t device, size_t bytes,
    size_t limit_bytes, size_t free_bytes);
typedef void (*tcuda_rejection_fn)(void *user_data, int32_t device, size_t bytes,
    size_t allocated_bytes, size_t total_bytes);
tcuda_status tcuda_memory_fraction_get(int32_t device, double *fraction);
tcuda_status tcuda_memory_fraction_set(int32_t device, double fraction);
tcuda_status tcuda_memory_on_out_of_memory(tcuda_out_of_memory_fn callback, void *user_data,
    tcuda_destroy_fn destroy, tcuda_observer **observer);
tcuda_status tcuda_memory_on_rejection(tcuda_rejection_fn callback, void *user_data,
    tcuda_destroy_fn destroy, tcuda_observer **observer);
tcuda_status tcuda_allocator_config_get(char *buf, size_t len, size_t *needed);
tcuda_status tcuda_allocator_config_set(const char *config);
const char *tcuda_allocator_backend(void);
tcuda_status tcuda_memory_caching_enable(int32_t enabled);
tcuda_status tcuda_memory_caching_is_enabled(bool *enabled);
enum {
    TCUDA_FRAMES_ALL = 0,
    TCUDA_FRAMES_ALLOC = 1,
    TCUDA_FRAMES_STATE = 2,
    TCUDA_FRAMES_NONE = 3
};
enum {
    TCUDA_RECORD_CLEAR = 1,
    TCUDA_RECORD_HOST = 2,
    TCUDA_RECORD_NO_DEVICE = 4,
    TCUDA_RECORD_NATIVE_FRAMES = 8
};
typedef int32_t tcuda_history_mode;
enum {
    TCUDA_HISTORY_OFF = 0,
    TCUDA_HISTORY_STATE = 1,
    TCUDA_HISTORY_ALL = 2
};
typedef struct tcuda_frame {
    const char *name;
    const char *filename;
    int32_t line;
} tcuda_frame;
typedef size_t (*tcuda_frames_fn)(void *user_data, tcuda_frame *frames, size_t capacity);
typedef struct tcuda_frame_context {
    void (*retain)(void *context);
    void (*release)(void *context);
} tcuda_frame_context;
typedef tcuda_frame_context *(*tcuda_frame_context_fn)(void *user_data);
typedef struct tcuda_history_options {
    size_t struct_size;
    size_t max_entries;
    int32_t frames_for;
    uint32_t flags;
    const char *skip_actions;
    tcuda_frames_fn frames;
    void *user_data;
    tcuda_destroy_fn destroy;
    tcuda_frame_context_fn context;
} tcuda_history_options;
tcuda_status tcuda_memory_record_history(tcuda_history_mode mode,
    const tcuda_history_options *options);
tcuda_status tcuda_memory_frames_of(const void *ptr, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_memory_context_of(const void *ptr, tcuda_frame_context **context);
tcuda_status tcuda_memory_metadata_set(const char *text);
tcuda_status tcuda_memory_metadata_get(char *buf, size_t len, size_t *needed);
tcuda_status tcuda_memory_compile_context_push(const char *text);
tcuda_status tcuda_memory_compile_context_pop(void);
tcuda_status tcuda_memory_annotate(const void *ptr, const char *text);
typedef struct tcuda_memory_snapshot tcuda_memory_snapshot;
typedef struct tcuda_segment_info {
    size_t struct_size;
    void *ptr;
    uint64_t total_bytes;
    uint64_t allocated_bytes;
    uint64_t active_bytes;
    uint64_t requested_bytes;
    size_t first_block;
    size_t block_count;
    struct CUstream_st *cu_stream;
    int64_t stream_id;
    int32_t device;
    int32_t is_small;
    uint64_t pool_id0;
    uint64_t pool_id1;
} tcuda_segment_info;
typedef int32_t tcuda_block_state;
enum {
    TCUDA_BLOCK_INACTIVE = 0,
    TCUDA_BLOCK_ACTIVE_ALLOCATED = 1,
    TCUDA_BLOCK_ACTIVE_PENDING_FREE = 2
};
typedef struct tcuda_block_info {
    size_t struct_size;
    void *ptr;
    uint64_t bytes;
    uint64_t requested_bytes;
    int32_t device;
    tcuda_block_state state;
    tcuda_frame_context *context;
} tcuda_block_info;
tcuda_status tcuda_memory_snapshot_create(int32_t with_history, tcuda_memory_snapshot **snapshot);
tcuda_status tcuda_memory_snapshot_destroy(tcuda_memory_snapshot *snapshot);
tcuda_status tcuda_memory_snapshot_counts(tcuda_memory_snapshot *snapshot, size_t *segment_count,
    size_t *block_count);
tcuda_status tcuda_memory_snapshot_segment(tcuda_memory_snapshot *snapshot, size_t index,
    tcuda_segment_info *segment);
tcuda_status tcuda_memory_snapshot_block(tcuda_memory_snapshot *snapshot, size_t index,
    tcuda_block_info *block);
tcuda_status tcuda_memory_snapshot_pickle(tcuda_memory_snapshot *snapshot, void *buf, size_t len,
    size_t *needed);
tcuda_status tcuda_memory_snapshot_json(tcuda_memory_snapshot *snapshot, char *buf, size_t len,
    size_t *needed);
tcuda_status tcuda_memory_snapshot_html(tcuda_memory_snapshot *snapshot, char *buf, size_t len,
    size_t *needed);
tcuda_status tcuda_memory_snapshot_save(tcuda_memory_snapshot *snapshot, const char *path);
typedef int32_t tcuda_memory_action;
typedef struct tcuda_memory_event {
    size_t struct_size;
    void *ptr;
    uint64_t bytes;
    uint64_t free_bytes;
    struct CUstream_st *cu_stream;
    uint64_t pool_id0;
    uint64_t pool_id1;
    int64_t time_us;
    tcuda_frame_context *context;
    const char *metadata;
    const char *compile_context;
    int32_t device;
    tcuda_memory_action action;
} tcuda_memory_event;
typedef void (*tcuda_memory_event_fn)(void *user_data, const tcuda_memory_event *event);
enum {
    TCUDA_ACTION_ALLOC = 0,
    TCUDA_ACTION_FREE_REQUESTED = 1,
    TCUDA_ACTION_FREE_COMPLETED = 2,
    TCUDA_ACTION_SEGMENT_ALLOC = 3,
    TCUDA_ACTION_SEGMENT_FREE = 4,
    TCUDA_ACTION_SEGMENT_MAP = 5,
    TCUDA_ACTION_SEGMENT_UNMAP = 6,
    TCUDA_ACTION_SNAPSHOT = 7,
    TCUDA_ACTION_OOM = 8,
    TCUDA_ACTION_ANNOTATE = 9
};
tcuda_status tcuda_memory_on_event(tcuda_memory_event_fn callback, void *user_data,
    tcuda_destroy_fn destroy, tcuda_observer **observer);
tcuda_status tcuda_memory_snapshot_event_count(tcuda_memory_snapshot *snapshot, int32_t device,
    size_t *count);
tcuda_status tcuda_memory_snapshot_event(tcuda_memory_snapshot *snapshot, int32_t device,
    size_t index, tcuda_memory_event *event);
typedef struct tcuda_pluggable_allocator tcuda_pluggable_allocator;
typedef void *(*tcuda_torch_malloc_fn)(ptrdiff_t bytes, int32_t device,
    struct CUstream_st *cu_stream);
typedef void (*tcuda_torch_free_fn)(void *ptr, ptrdiff_t bytes, int32_t device,
    struct CUstream_st *cu_stream);
typedef struct tcuda_pluggable_hooks {
    size_t struct_size;
    void (*init)(int32_t device_count);
    void (*reset)(void);
    void (*memory_fraction)(double fraction, int32_t device);
    void *(*base_alloc)(void *ptr, size_t *bytes);
    void (*record_stream)(void *ptr, struct CUstream_st *cu_stream);
} tcuda_pluggable_hooks;
tcuda_status tcuda_pluggable_allocator_load(const char *path, const char *alloc_symbol,
    const char *free_symbol, tcuda_pluggable_allocator **allocator);
tcuda_status tcuda_pluggable_allocator_create(tcuda_torch_malloc_fn alloc_fn,
    tcuda_torch_free_fn free_fn, tcuda_pluggable_allocator **allocator);
tcuda_status tcuda_pluggable_allocator_destroy(tcuda_pluggable_allocator *allocator);
tcuda_status tcuda_pluggable_allocator_set_hooks(tcuda_pluggable_allocator *allocator,
    const tcuda_pluggable_hooks *hooks);
tcuda_status tcuda_allocator_set_current(tcuda_pluggable_allocator *allocator);
enum {
    TCUDA_MEM_POOL_USE_ON_OOM = 1,
    TCUDA_MEM_POOL_NO_SPLIT = 2
};
typedef struct tcuda_mem_pool tcuda_mem_pool;
typedef int32_t (*tcuda_stream_filter_fn)(void *user_data, struct CUstream_st *cu_stream);
typedef struct tcuda_pool_block {
    void *ptr;
    size_t requested_bytes;
    size_t bytes;
    int64_t stream_id;
} tcuda_pool_block;
tcuda_status tcuda_mem_pool_create(tcuda_pluggable_allocator *allocator, uint32_t flags,
    tcuda_mem_pool **pool);
tcuda_status tcuda_mem_pool_from_id(uint64_t id0, uint64_t id1,
    tcuda_pluggable_allocator *allocator, tcuda_mem_pool **pool);
tcuda_status tcuda_mem_pool_set_flags(tcuda_mem_pool *pool, uint32_t flags);
tcuda_status tcuda_mem_pool_destroy(tcuda_mem_pool *pool);
tcuda_status tcuda_mem_pool_begin(tcuda_mem_pool *pool, int32_t device);
tcuda_status tcuda_mem_pool_end(tcuda_mem_pool *pool, int32_t device);
tcuda_status tcuda_mem_pool_begin_streams(tcuda_mem_pool *pool, int32_t device,
    tcuda_stream_filter_fn filter, void *user_data, tcuda_destroy_fn destroy);
tcuda_status tcuda_mem_pool_end_streams(tcuda_mem_pool *pool, int32_t device);
tcuda_status tcuda_mem_pool_sleep(tcuda_mem_pool *pool, int32_t keep_contents);
tcuda_status tcuda_mem_pool_wake(tcuda_mem_pool *pool);
tcuda_status tcuda_mem_pool_snapshot(tcuda_mem_pool *pool, int32_t with_history,
    tcuda_memory_snapshot **snapshot);
tcuda_status tcuda_mem_pool_id(tcuda_mem_pool *pool, uint64_t *id0, uint64_t *id1);
tcuda_status tcuda_mem_pool_use_count(tcuda_mem_pool *pool, uint32_t *count);
tcuda_status tcuda_mem_pool_malloc_at(tcuda_mem_pool *pool, void *ptr, size_t bytes);
tcuda_status tcuda_mem_pool_blocks(tcuda_mem_pool *pool, int32_t device, tcuda_pool_block *blocks,
    size_t capacity, size_t *count);
tcuda_status tcuda_mem_pool_restore(tcuda_mem_pool *pool, int32_t device,
    const tcuda_pool_block *blocks, size_t count);
tcuda_status tcuda_mem_pool_check_live(tcuda_mem_pool *pool, int32_t device,
    const void *const *ptrs, size_t count, bool *equal);
enum {
    TCUDA_MANAGED_NO_ADVICE = 1,
    TCUDA_MANAGED_PREFETCH = 2,
    TCUDA_MANAGED_ATTACH_HOST = 4
};
enum {
    TCUDA_ADVISE_SET_READ_MOSTLY = 1,
    TCUDA_ADVISE_UNSET_READ_MOSTLY = 2,
    TCUDA_ADVISE_SET_PREFERRED_LOCATION = 3,
    TCUDA_ADVISE_UNSET_PREFERRED_LOCATION = 4,
    TCUDA_ADVISE_SET_ACCESSED_BY = 5,
    TCUDA_ADVISE_UNSET_ACCESSED_BY = 6
};
enum {
    TCUDA_ATTACH_GLOBAL = 1,
    TCUDA_ATTACH_HOST = 2,
    TCUDA_ATTACH_SINGLE = 4
};
typedef struct tcuda_memory_range_info {
    size_t struct_size;
    uint64_t accessed_by;
    int32_t is_accessed_by_host;
    int32_t is_read_mostly;
    int32_t preferred_device;
    int32_t prefetched_device;
} tcuda_memory_range_info;
tcuda_status tcuda_managed_malloc(size_t bytes, int32_t device, tcuda_stream *stream,
    uint32_t flags, void **ptr);
tcuda_status tcuda_pluggable_allocator_managed(uint32_t flags,
    tcuda_pluggable_allocator **allocator);
tcuda_status tcuda_memory_advise(const void *ptr, size_t bytes, int32_t advice, int32_t device);
tcuda_status tcuda_memory_prefetch(const void *ptr, size_t bytes, int32_t device,
    tcuda_stream *stream);
tcuda_status tcuda_memory_attach(const void *ptr, size_t bytes, uint32_t flags,
    tcuda_stream *stream);
tcuda_status tcuda_memory_range(const void *ptr, size_t bytes, tcuda_memory_range_info *info);
tcuda_status tcuda_malloc_native(size_t bytes, int32_t device, struct CUstream_st *cu_stream,
    void **ptr);
tcuda_status tcuda_malloc_native_aligned(size_t bytes, size_t alignment, int32_t device,
    struct CUstream_st *cu_stream, void **ptr);
tcuda_status tcuda_free_on(void *ptr, struct CUstream_st *cu_stream);
void *tcuda_torch_malloc(ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream);
void tcuda_torch_free(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream);
void tcuda_torch_init(int32_t device_count);
void tcuda_torch_reset(void);
void tcuda_torch_memory_fraction(double fraction, int32_t device);
void *tcuda_torch_base_alloc(void *ptr, size_t *bytes);
void tcuda_torch_record_stream(void *ptr, struct CUstream_st *cu_stream);
void tcuda_torch_begin_allocate_to_pool(int32_t device, uint64_t id0, uint64_t id1,
    const void *filter);
void tcuda_torch_end_allocate_to_pool(int32_t device, uint64_t id0, uint64_t id1);
void tcuda_torch_mark_capture_begin(int32_t device);
void tcuda_torch_mark_capture_end(int32_t device);
void tcuda_torch_release_pool(int32_t device, uint64_t id0, uint64_t id1);
void *tcuda_ort_malloc(size_t bytes);
void tcuda_ort_free(void *ptr);
void tcuda_ort_empty_cache(void);
typedef uint32_t tcuda_host_register_flags;
enum {
    TCUDA_HOST_REGISTER_PORTABLE = 1,
    TCUDA_HOST_REGISTER_MAPPED = 2,
    TCUDA_HOST_REGISTER_IO_MEMORY = 4,
    TCUDA_HOST_REGISTER_READ_ONLY = 8
};
typedef struct tcuda_duration {
    uint64_t total_us;
    uint64_t max_us;
    uint64_t min_us;
    uint64_t count;
    uint64_t avg_us;
} tcuda_duration;
typedef struct tcuda_host_memory_statistics {
    size_t struct_size;
    uint64_t num_host_alloc;
    uint64_t num_host_free;
    tcuda_stat allocations;
    tcuda_stat allocated_bytes;
    tcuda_stat active_requests;
    tcuda_stat active_bytes;
    tcuda_duration host_alloc_time;
    tcuda_duration host_free_time;
} tcuda_host_memory_statistics;
tcuda_status tcuda_host_malloc(size_t bytes, void **ptr);
tcuda_status tcuda_host_free(void *ptr);
tcuda_status tcuda_host_record(void *ptr, tcuda_stream *stream);
tcuda_status tcuda_host_register(void *ptr, size_t bytes, tcuda_host_register_flags flags);
tcuda_status tcuda_host_unregister(void *ptr);
tcuda_status tcuda_host_memory_stats(tcuda_host_memory_statistics *stats);
tcuda_status tcuda_host_memory_reset_peak(void);
tcuda_status tcuda_host_memory_reset_accumulated(void);
tcuda_status tcuda_host_memory_empty_cache(void);
typedef struct tcuda_ipc_handle {
    uint8_t bytes[512];
} tcuda_ipc_handle;
tcuda_status tcuda_ipc_export(void *ptr, tcuda_stream *stream, tcuda_ipc_handle *handle);
tcuda_status tcuda_ipc_import(const tcuda_ipc_handle *handle, tcuda_stream *stream, void **ptr,
    size_t *bytes);
tcuda_status tcuda_ipc_close(void *ptr, tcuda_stream *stream);
tcuda_status tcuda_ipc_withdraw(const tcuda_ipc_handle *handle);
tcuda_status tcuda_ipc_collect(void);
typedef struct tcuda_file tcuda_file;
typedef uint32_t tcuda_file_flags;
enum {
    TCUDA_FILE_READ = 1,
    TCUDA_FILE_WRITE = 2,
    TCUDA_FILE_CREATE = 4,
    TCUDA_FILE_TRUNCATE = 8,
    TCUDA_FILE_STAGING = 16
};
tcuda_status tcuda_file_is_supported(bool *supported);
tcuda_status tcuda_file_open(const char *path, tcuda_file_flags flags, tcuda_file **file);
tcuda_status tcuda_file_close(tcuda_file *file);
tcuda_status tcuda_file_read(tcuda_file *file, void *ptr, size_t bytes, int64_t file_offset,
    tcuda_stream *stream, size_t *bytes_done);
tcuda_status tcuda_file_write(tcuda_file *file, const void *ptr, size_t bytes, int64_t file_offset,
    tcuda_stream *stream, size_t *bytes_done);
tcuda_status tcuda_file_register_buffer(void *ptr, size_t bytes);
tcuda_status tcuda_file_unregister_buffer(void *ptr);
tcuda_status tcuda_file_native(tcuda_file *file, int32_t *descriptor, void **cufile_handle);
enum {
    TCUDA_DEVICE_CPU = 1,
    TCUDA_DEVICE_CUDA = 2,
    TCUDA_DEVICE_CUDA_HOST = 3,
    TCUDA_DEVICE_CUDA_MANAGED = 13
};
enum {
    TCUDA_DTYPE_INT = 0,
    TCUDA_DTYPE_UINT = 1,
    TCUDA_DTYPE_FLOAT = 2,
    TCUDA_DTYPE_BFLOAT = 4,
    TCUDA_DTYPE_COMPLEX = 5,
    TCUDA_DTYPE_BOOL = 6,
    TCUDA_DTYPE_FLOAT8_E4M3FN = 10,
    TCUDA_DTYPE_FLOAT8_E5M2 = 12,
    TCUDA_DTYPE_FLOAT4_E2M1FN = 17
};
typedef struct tcuda_tensor_device {
    int32_t device_type;
    int32_t device_id;
} tcuda_tensor_device;
typedef struct tcuda_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} tcuda_dtype;
typedef struct tcuda_tensor {
    void *data;
    tcuda_tensor_device device;
    int32_t ndim;
    tcuda_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} tcuda_tensor;
tcuda_status tcuda_tensor_release(tcuda_tensor *tensor);
tcuda_status tcuda_tensor_device_of(const tcuda_tensor *tensor, int32_t *device);
tcuda_status tcuda_tensor_from_dlpack(struct DLManagedTensorVersioned *managed,
    tcuda_tensor *tensor);
tcuda_status tcuda_tensor_to_dlpack(tcuda_tensor *tensor,
    struct DLManagedTensorVersioned **managed);
enum {
    TCUDA_RANDOM_STATE_BYTES = 16
};
typedef struct tcuda_generator tcuda_generator;
typedef struct tcuda_philox_state {
    uint64_t seed;
    uint64_t offset;
    const uint64_t *seed_ptr;
    const uint64_t *offset_ptr;
} tcuda_philox_state;
tcuda_status tcuda_random_manual_seed(int32_t device, uint64_t seed);
tcuda_status tcuda_random_manual_seed_all(uint64_t seed);
tcuda_status tcuda_random_seed(int32_t device);
tcuda_status tcuda_random_seed_all(void);
tcuda_status tcuda_random_initial_seed(int32_t device, uint64_t *seed);
tcuda_status tcuda_random_state_get(int32_t device, uint8_t *state);
tcuda_status tcuda_random_state_set(int32_t device, const uint8_t *state);
tcuda_status tcuda_random_state_get_all(uint8_t *states, size_t capacity, size_t *count);
tcuda_status tcuda_random_state_set_all(const uint8_t *states, size_t count);
tcuda_status tcuda_generator_create(int32_t device, tcuda_generator **generator);
tcuda_status tcuda_generator_destroy(tcuda_generator *generator);
tcuda_status tcuda_generator_default(int32_t device, tcuda_generator **generator);
tcuda_status tcuda_generator_seed_get(tcuda_generator *generator, uint64_t *seed);
tcuda_status tcuda_generator_seed_set(tcuda_generator *generator, uint64_t seed);
tcuda_status tcuda_generator_offset_get(tcuda_generator *generator, uint64_t *offset);
tcuda_status tcuda_generator_offset_set(tcuda_generator *generator, uint64_t offset);
tcuda_status tcuda_generator_state_get(tcuda_generator *generator, uint8_t *state);
tcuda_status tcuda_generator_state_set(tcuda_generator *generator, const uint8_t *state);
tcuda_status tcuda_generator_philox_state(tcuda_generator *generator, uint64_t increment,
    tcuda_philox_state *state);
tcuda_status tcuda_random_uniform(const tcuda_tensor *tensor, double low, double high,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_normal(const tcuda_tensor *tensor, double mean, double stddev,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_integers(const tcuda_tensor *tensor, int64_t low, int64_t high,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_integers_from(const tcuda_tensor *tensor, int64_t low,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_integers_all(const tcuda_tensor *tensor, tcuda_generator *generator,
    tcuda_stream *stream);
tcuda_status tcuda_random_bernoulli(const tcuda_tensor *tensor, double p,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_bernoulli_tensor(const tcuda_tensor *tensor, const tcuda_tensor *p,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_exponential(const tcuda_tensor *tensor, double rate,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_log_normal(const tcuda_tensor *tensor, double mean, double stddev,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_cauchy(const tcuda_tensor *tensor, double median, double sigma,
    tcuda_generator *generator, tcuda_stream *stream);
tcuda_status tcuda_random_geometric(const tcuda_tensor *tensor, double p,
    tcuda_generator *generator, tcuda_stream *stream);
typedef struct tcuda_graph tcuda_graph;
typedef struct tcuda_graphed_callable tcuda_graphed_callable;
typedef int32_t tcuda_capture_mode;
enum {
    TCUDA_CAPTURE_GLOBAL = 0,
    TCUDA_CAPTURE_THREAD_LOCAL = 1,
    TCUDA_CAPTURE_RELAXED = 2
};
typedef int32_t tcuda_condition;
enum {
    TCUDA_CONDITION_IF = 0,
    TCUDA_CONDITION_WHILE = 1
};
typedef uint32_t tcuda_graph_event;
enum {
    TCUDA_GRAPH_CAPTURE_BEGUN = 1,
    TCUDA_GRAPH_CAPTURE_ENDED = 2,
    TCUDA_GRAPH_INSTANTIATED = 4,
    TCUDA_GRAPH_REPLAY_BEGINS = 8,
    TCUDA_GRAPH_REPLAY_QUEUED = 16,
    TCUDA_GRAPH_DESTROYED = 32
};
typedef void (*tcuda_graph_hook_fn)(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    struct CUgraph_st *cu_graph, struct CUgraphExec_st *cu_graph_exec);
typedef int32_t (*tcuda_callable_fn)(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs);
typedef struct tcuda_callable {
    size_t struct_size;
    tcuda_callable_fn forward;
    tcuda_callable_fn backward;
    void *user_data;
    tcuda_destroy_fn destroy;
    const tcuda_tensor *sample_inputs;
    size_t num_inputs;
    size_t num_outputs;
} tcuda_callable;
typedef struct tcuda_graphed_callable_options {
    size_t struct_size;
    tcuda_mem_pool *pool;
    int32_t warmup_iterations;
    tcuda_capture_mode error_mode;
} tcuda_graphed_callable_options;
tcuda_status tcuda_graph_create(int32_t keep, tcuda_graph **graph);
tcuda_status tcuda_graph_destroy(tcuda_graph *graph);
tcuda_status tcuda_graph_capture_begin(tcuda_graph *graph, tcuda_stream *stream,
    tcuda_mem_pool *pool, tcuda_capture_mode error_mode);
tcuda_status tcuda_graph_capture_end(tcuda_graph *graph);
tcuda_status tcuda_graph_capture_abort(tcuda_graph *graph);
tcuda_status tcuda_graph_begin(tcuda_graph *graph, tcuda_stream *stream, tcuda_mem_pool *pool,
    tcuda_capture_mode error_mode, tcuda_stream **previous, int32_t *previous_device);
tcuda_status tcuda_graph_end(tcuda_graph *graph, tcuda_stream *previous, int32_t previous_device);
tcuda_status tcuda_graph_instantiate(tcuda_graph *graph);
tcuda_status tcuda_graph_update(tcuda_graph *graph, tcuda_graph *source);
tcuda_status tcuda_graph_replay(tcuda_graph *graph, tcuda_stream *stream);
tcuda_status tcuda_graph_reset(tcuda_graph *graph);
tcuda_status tcuda_graph_stream(int32_t device, tcuda_stream **stream);
tcuda_status tcuda_graph_pool(tcuda_graph *graph, tcuda_mem_pool **pool);
tcuda_status tcuda_graph_pools(tcuda_graph *graph, tcuda_mem_pool **pools, size_t capacity,
    size_t *count);
tcuda_status tcuda_graph_pool_handle(tcuda_mem_pool **pool);
tcuda_status tcuda_graph_debug_dump(tcuda_graph *graph, const char *path);
tcuda_status tcuda_graph_register_generator(tcuda_graph *graph, tcuda_generator *generator);
tcuda_status tcuda_graph_native(tcuda_graph *graph, struct CUgraph_st **cu_graph,
    struct CUgraphExec_st **cu_graph_exec);
tcuda_status tcuda_stream_is_capturing(tcuda_stream *stream, bool *capturing);
tcuda_status tcuda_graph_conditional_begin(tcuda_graph *graph, tcuda_condition condition,
    const void *predicate, tcuda_stream *stream, tcuda_stream **body);
tcuda_status tcuda_graph_conditional_set(tcuda_graph *graph, const void *predicate,
    tcuda_stream *stream);
tcuda_status tcuda_graph_conditional_end(tcuda_graph *graph);
tcuda_status tcuda_graph_on_event(tcuda_graph *graph, tcuda_graph_event events,
    tcuda_graph_hook_fn hook, void *user_data, tcuda_destroy_fn destroy, tcuda_observer **observer);
tcuda_status tcuda_graph_retain(tcuda_graph *graph, void *user_data, tcuda_destroy_fn destroy,
    int32_t synchronize);
tcuda_status tcuda_graph_data_json(tcuda_graph *graph, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_graph_data_dot(tcuda_graph *graph, char *buf, size_t len, size_t *needed);
tcuda_status tcuda_graph_annotation_push(tcuda_stream *stream, const char *annotation);
tcuda_status tcuda_graph_annotation_pop(tcuda_stream *stream);
tcuda_status tcuda_graph_capturing(tcuda_stream *stream, tcuda_graph **graph);
tcuda_status tcuda_graphed_callable_create(const tcuda_callable *callables, size_t count,
    const tcuda_graphed_callable_options *options, tcuda_graphed_callable **graphed);
tcuda_status tcuda_graphed_callable_destroy(tcuda_graphed_callable *graphed);
tcuda_status tcuda_graphed_callable_call(tcuda_graphed_callable *graphed,
    const tcuda_tensor *inputs, size_t num_inputs, tcuda_stream *stream, tcuda_tensor *outputs,
    size_t num_outputs);
tcuda_status tcuda_graphed_callable_call_backward(tcuda_graphed_callable *graphed,
    const tcuda_tensor *grad_outputs, size_t num_outputs, tcuda_stream *stream,
    tcuda_tensor *grad_inputs, size_t num_inputs);
tcuda_status tcuda_comm_broadcast(const tcuda_tensor *src, const int32_t *devices, size_t count,
    tcuda_tensor *outs);
tcuda_status tcuda_comm_broadcast_into(const tcuda_tensor *src, const tcuda_tensor *outs,
    size_t count);
tcuda_status tcuda_comm_broadcast_coalesced(const tcuda_tensor *tensors, size_t num_tensors,
    const int32_t *devices, size_t num_devices, size_t buffer_bytes, tcuda_tensor *outs);
tcuda_status tcuda_comm_reduce_add(const tcuda_tensor *tensors, size_t count, int32_t destination,
    tcuda_tensor *out);
tcuda_status tcuda_comm_reduce_add_into(const tcuda_tensor *tensors, size_t count,
    const tcuda_tensor *out);
tcuda_status tcuda_comm_reduce_add_coalesced(const tcuda_tensor *tensors, size_t num_devices,
    size_t num_tensors, int32_t destination, size_t buffer_bytes, tcuda_tensor *outs);
tcuda_status tcuda_comm_scatter(const tcuda_tensor *tensor, const int32_t *devices,
    const int64_t *chunk_sizes, size_t count, int32_t dim, tcuda_stream *const *streams,
    tcuda_tensor *outs);
tcuda_status tcuda_comm_scatter_into(const tcuda_tensor *tensor, const tcuda_tensor *outs,
    size_t count, int32_t dim, tcuda_stream *const *streams);
tcuda_status tcuda_comm_gather(const tcuda_tensor *tensors, size_t count, int32_t dim,
    int32_t destination, tcuda_tensor *out);
tcuda_status tcuda_comm_gather_into(const tcuda_tensor *tensors, size_t count, int32_t dim,
    const tcuda_tensor *out);
typedef struct tcuda_communicator tcuda_communicator;
typedef struct tcuda_unique_id {
    uint8_t bytes[128];
} tcuda_unique_id;
typedef int32_t tcuda_reduce_op;
enum {
    TCUDA_REDUCE_SUM = 0,
    TCUDA_REDUCE_PROD = 1,
    TCUDA_REDUCE_MAX = 2,
    TCUDA_REDUCE_MIN = 3
};
tcuda_status tcuda_nccl_version(int32_t *major, int32_t *minor, int32_t *patch);
tcuda_status tcuda_communicator_unique_id(tcuda_unique_id *id);
tcuda_status tcuda_communicator_init_rank(const tcuda_unique_id *id, int32_t num_ranks,
    int32_t rank, int32_t device, tcuda_communicator **communicator);
tcuda_status tcuda_communicator_init_all(const int32_t *devices, size_t count,
    tcuda_communicator **communicators);
tcuda_status tcuda_communicator_destroy(tcuda_communicator *communicator);
tcuda_status tcuda_communicator_abort(tcuda_communicator *communicator);
tcuda_status tcuda_communicator_query(tcuda_communicator *communicator);
tcuda_status tcuda_communicator_group_begin(void);
tcuda_status tcuda_communicator_group_end(void);
tcuda_status tcuda_communicator_all_reduce(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, tcuda_reduce_op op,
    tcuda_stream *stream);
tcuda_status tcuda_communicator_broadcast(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, int32_t root, tcuda_stream *stream);
tcuda_status tcuda_communicator_reduce(tcuda_communicator *communicator, const tcuda_tensor *input,
    const tcuda_tensor *output, tcuda_reduce_op op, int32_t root, tcuda_stream *stream);
tcuda_status tcuda_communicator_all_gather(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, tcuda_stream *stream);
tcuda_status tcuda_communicator_reduce_scatter(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, tcuda_reduce_op op,
    tcuda_stream *stream);
tcuda_status tcuda_communicator_send(tcuda_communicator *communicator, const tcuda_tensor *input,
    int32_t peer, tcuda_stream *stream);
tcuda_status tcuda_communicator_recv(tcuda_communicator *communicator, const tcuda_tensor *output,
    int32_t peer, tcuda_stream *stream);
tcuda_status tcuda_nvtx_mark(const char *message);
tcuda_status tcuda_nvtx_range_push(const char *message, int32_t *depth);
tcuda_status tcuda_nvtx_range_pop(int32_t *depth);
tcuda_status tcuda_nvtx_range_start(const char *message, uint64_t *id);
tcuda_status tcuda_nvtx_range_end(uint64_t id);
tcuda_status tcuda_nvtx_device_range_start(const char *message, tcuda_stream *stream, uint64_t *id);
tcuda_status tcuda_nvtx_device_range_end(uint64_t id, tcuda_stream *stream);
tcuda_status tcuda_profiler_start(void);
tcuda_status tcuda_profiler_stop(void);
tcuda_status tcuda_monitor_utilization(int32_t device, uint32_t *percent);
tcuda_status tcuda_monitor_memory_usage(int32_t device, uint32_t *percent);
tcuda_status tcuda_monitor_temperature_c(int32_t device, int32_t *celsius);
tcuda_status tcuda_monitor_power_draw_mw(int32_t device, uint32_t *milliwatts);
tcuda_status tcuda_monitor_clock_rate_mhz(int32_t device, uint32_t *megahertz);
tcuda_status tcuda_monitor_memory_used(int32_t device, uint64_t *bytes);
enum {
    TCUDA_SCALAR_DOUBLE = 0,
    TCUDA_SCALAR_INT = 1,
    TCUDA_SCALAR_BOOL = 2,
    TCUDA_SCALAR_COMPLEX = 3
};
enum {
    TCUDA_IMAGE_PTX = 1,
    TCUDA_IMAGE_CUBIN = 2,
    TCUDA_IMAGE_FATBIN = 3,
    TCUDA_IMAGE_OBJECT = 4,
    TCUDA_IMAGE_LIBRARY = 5,
    TCUDA_IMAGE_LTOIR = 6
};
enum {
    TCUDA_ACCESS_NONE = 0,
    TCUDA_ACCESS_READ = 1,
    TCUDA_ACCESS_WRITE = 2,
    TCUDA_ACCESS_READ_WRITE = 3
};
typedef struct tcuda_jit tcuda_jit;
typedef struct tcuda_kernel tcuda_kernel;
typedef struct tcuda_scalar {
    const char *name;
    int32_t kind;
    int64_t integer;
    double real;
    double imaginary;
} tcuda_scalar;
typedef struct tcuda_jit_options {
    size_t struct_size;
    const tcuda_scalar *scalars;
    size_t num_scalars;
} tcuda_jit_options;
typedef struct tcuda_kernel_image {
    const void *data;
    size_t bytes;
    const char *name;
    int32_t kind;
} tcuda_kernel_image;
typedef struct tcuda_kernel_options {
    size_t struct_size;
    const char *const *flags;
    size_t num_flags;
    const tcuda_kernel_image *images;
    size_t num_images;
    int32_t lto;
} tcuda_kernel_options;
typedef struct tcuda_launch_options {
    size_t struct_size;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    const int32_t *accesses;
    uint32_t cluster[3];
    int32_t cooperative;
    int32_t programmatic;
    int32_t priority;
    int32_t shared_carveout_percent;
} tcuda_launch_options;
typedef struct tcuda_kernel_info {
    size_t struct_size;
    int32_t registers;
    int32_t max_threads_per_block;
    uint64_t static_shared_bytes;
    uint64_t max_dynamic_shared_bytes;
    uint64_t local_bytes;
    uint64_t constant_bytes;
    int32_t ptx_version;
    int32_t binary_version;
    uint32_t required_cluster[3];
    uint32_t max_blocks_per_multiprocessor;
    uint64_t max_cooperative_blocks;
    uint32_t max_cluster_blocks;
    uint32_t max_active_clusters;
    uint32_t suggested_block_threads;
    uint32_t suggested_grid_blocks;
} tcuda_kernel_info;
tcuda_status tcuda_jit_create(const char *code, const tcuda_jit_options *options, tcuda_jit **jit);
tcuda_status tcuda_jit_create_multi(const char *code, int32_t num_outputs,
    const tcuda_jit_options *options, tcuda_jit **jit);
tcuda_status tcuda_jit_destroy(tcuda_jit *jit);
tcuda_status tcuda_jit_call(tcuda_jit *jit, const tcuda_tensor *inputs, size_t num_inputs,
    const tcuda_scalar *scalars, size_t num_scalars, const tcuda_tensor *outputs,
    size_t num_outputs, tcuda_stream *stream);
tcuda_status tcuda_kernel_compile(const char *source, const char *name,
    const tcuda_kernel_options *options, tcuda_kernel **kernel);
tcuda_status tcuda_kernel_destroy(tcuda_kernel *kernel);
tcuda_status tcuda_kernel_launch(tcuda_kernel *kernel, const tcuda_launch_options *options,
    void *const *args, size_t num_args, tcuda_stream *stream);
tcuda_status tcuda_kernel_properties(tcuda_kernel *kernel, const tcuda_launch_options *options,
    tcuda_stream *stream, tcuda_kernel_info *info);
typedef struct tcuda_access {
    const void *ptr;
    size_t bytes;
    const char *label;
    const char *frames;
    int64_t stream_id;
    uint64_t sequence;
    int32_t device;
    int32_t mode;
} tcuda_access;
typedef struct tcuda_sanitizer_report {
    size_t struct_size;
    const void *ptr;
    size_t bytes;
    tcuda_access current;
    tcuda_access previous;
    const char *allocation;
    const char *missing;
} tcuda_sanitizer_report;
typedef void (*tcuda_report_fn)(void *user_data, const tcuda_sanitizer_report *report);
typedef struct tcuda_sanitizer_options {
    size_t struct_size;
    size_t max_reports;
    tcuda_report_fn report;
    tcuda_frames_fn frames;
    void *user_data;
    tcuda_destroy_fn destroy;
} tcuda_sanitizer_options;
tcuda_status tcuda_sanitizer_enable(const tcuda_sanitizer_options *options);
tcuda_status tcuda_sanitizer_disable(void);
tcuda_status tcuda_sanitizer_access(tcuda_stream *stream, const void *ptr, size_t bytes,
    int32_t mode, const char *label);
tcuda_status tcuda_sanitizer_report_count(size_t *count);
tcuda_status tcuda_sanitizer_report_get(size_t index, tcuda_sanitizer_report *report);
tcuda_status tcuda_sanitizer_report_text(size_t index, char *buf, size_t len, size_t *needed);
