/* tcuda.h: all of torch.cuda as a C library.
 *
 * Generated from src/ffi by tests/header; do not edit: TCUDA_BLESS=1 cargo test --test header
 *
 * Status     All that can fail returns tcuda_status; 0 is success. On failure no output is written
 *            and tcuda_last_error() tells this thread what was wrong and what to do.
 * Order      Subject, inputs, stream, outputs. Names carry units (_bytes, _ms, _us, _mw, _mhz).
 *            A fixed attribute is a bare noun; one that can be written has _get and _set.
 * torch      In parentheses: what a function is called in PyTorch, (torch.cuda.set_device). (+): it
 *            has no such function.
 * Devices    Ordinals; TCUDA_CURRENT_DEVICE (-1) is this thread's current device, everywhere. Other
 *            negative numbers are TCUDA_STATUS_INVALID_DEVICE, except where a comment says more.
 * No driver  tcuda_is_available gives false and tcuda_device_count 0; statistics are 0; seeds wait;
 *            negative devices and NULL streams that are made current change nothing. Every other
 *            call that needs a device gives TCUDA_STATUS_NO_DRIVER.
 * Fork       Once the driver was started a forked child gets TCUDA_STATUS_FORKED from every call,
 *            except tcuda_is_available and tcuda_is_initialized (false), seeds (ignored), last
 *            errors and NVTX ranges: use spawn.
 * Streams    NULL is the current stream of the device that the call names, else of its pointer's or
 *            tensor's, else of the current one. Such calls queue or order work; they do not wait.
 * Handles    Opaque and checked: NULL, stale or foreign is TCUDA_STATUS_INVALID_HANDLE, never
 *            undefined. What comes through T ** is the caller's, to be destroyed once, in any order
 *            (objects keep what they need alive). A "borrowed" handle is not the caller's and stays
 *            valid; one of a host's stream, until the last handle that tcuda_stream_from_external
 *            gave for that stream is destroyed.
 *            Handles are never const: they name an object and are not read through.
 * destroy    Returns a status, because a stale handle, which void would swallow, is the very bug to
 *            report; unique_ptr, Drop, finalizers and ffi.gc may ignore it. NULL is OK: no-op.
 *            INVALID_HANDLE: nothing was destroyed. Any other status: the handle is gone, and the
 *            status is what the driver said on the way. The same holds for _free and _release.
 * NULL       May be NULL everywhere: streams, generators (the device's default), options, destroy,
 *            user_data, needed, a buf of len 0, a list of count 0. Anything else only where its
 *            comment says that it "may be NULL".
 * Native     CUDA's own types: a cudaStream_t or CUstream passes uncast; a native NULL is CUDA's
 *            default stream. Native handles that come out are borrowed.
 * Memory     Device memory is void *. Unknown or freed pointers are TCUDA_STATUS_INVALID_POINTER.
 * Structs    With struct_size: start from TCUDA_INIT(type). They grow only at the end; what one
 *            side lacks is left alone; zero options are defaults. Without struct_size: frozen.
 * Numbers    Incoming enums and bools are int32_t, flags uint32_t; all are checked.
 * Text       In: UTF-8, NUL-terminated, copied. Out: (buf, len, needed) as snprintf: NUL-terminated
 *            if len > 0; *needed excludes the NUL, *needed >= len means cut; (NULL, 0) asks for it.
 *            Bytes: the same without a NUL. const char * that is returned is static.
 * Lists      In: (items, count). Out: (items, capacity, count): the rule for text, in elements.
 * Callbacks  user_data comes first; they must return: no exception and no longjmp may leave them.
 *            destroy(user_data) runs once, when the library no longer needs it; if a registration
 *            fails, it does not run.
 * Threads    Any call, any thread, any time, but not in a signal handler. A host function of a
 *            stream is limited further: see tcuda_host_fn.
 *            Current device, streams, last error: thread-local.
 *            pthread_cancel takes effect when the call has returned; callbacks must not enable
 *            it. A thread with PTHREAD_CANCEL_ASYNCHRONOUS must make no call. */

#ifndef TCUDA_H
#define TCUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCUDA_VERSION_MAJOR 0
#define TCUDA_VERSION_MINOR 1
#define TCUDA_VERSION_PATCH 0
#define TCUDA_VERSION 1000 /* major * 1000000 + minor * 1000 + patch */

/* Where a function comes from. Define TCUDA_STATIC to link the static library. */
#if defined(_WIN32) && !defined(TCUDA_STATIC)
#define TCUDA_API __declspec(dllimport)
#elif defined(__GNUC__)
#define TCUDA_API __attribute__((visibility("default")))
#else
#define TCUDA_API
#endif

/* A result not to be ignored: every status except those of _destroy, _free and _release. */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define TCUDA_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define TCUDA_NODISCARD __attribute__((warn_unused_result))
#else
#define TCUDA_NODISCARD
#endif

/* A struct with its size set and the rest zero: tcuda_x x = TCUDA_INIT(tcuda_x); */
#ifdef __cplusplus
#define TCUDA_INIT(type) \
    [] { \
        type init = {}; \
        init.struct_size = sizeof(type); \
        return init; \
    }()
#else
#define TCUDA_INIT(type) { .struct_size = sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's own types. */
struct CUstream_st;       /* CUstream, cudaStream_t */
struct CUevent_st;        /* CUevent, cudaEvent_t */
struct CUgraph_st;        /* CUgraph, cudaGraph_t */
struct CUgraphExec_st;    /* CUgraphExec, cudaGraphExec_t */
struct CUctx_st;          /* CUcontext */
struct CUgreenCtx_st;     /* CUgreenCtx */
struct cublasContext;     /* cublasHandle_t */
struct cusolverDnContext; /* cusolverDnHandle_t */
struct DLManagedTensorVersioned;

/* ===================================== Library ================================================ */

#define TCUDA_CURRENT_DEVICE (-1) /**< Any device parameter: this thread's current device. */

/**
 * Host memory, as the destination of a collective. Older versions of torch wrote -1 for it there,
 * which is the current device here.
 */
#define TCUDA_CPU_DEVICE (-2)

/**
 * Outcome of a call. Numbers never change and are never reused.
 *
 * 1 to 19 are about the call, 20 to 39 about what the machine or process lacks, 40 to 59 are
 * failures of another library or of the host (its code: tcuda_last_error_native), 60 to 69 are
 * about captures, 99 is a fault of the library.
 */
typedef enum tcuda_status {
    TCUDA_STATUS_OK = 0,                /**< Done. */
    TCUDA_STATUS_INVALID_ARGUMENT = 1,  /**< Out of range, NULL, malformed, wrong struct_size. */
    TCUDA_STATUS_INVALID_HANDLE = 2,    /**< NULL, stale, destroyed twice, of another kind. */
    TCUDA_STATUS_INVALID_POINTER = 3,   /**< Not allocated by the library, or already freed. */
    TCUDA_STATUS_INVALID_DEVICE = 4,    /**< Ordinal not below tcuda_device_count(). */
    TCUDA_STATUS_INVALID_STATE = 5,     /**< Right call, wrong time: end without begin, too late. */
    TCUDA_STATUS_NOT_READY = 6,         /**< Elapsed time of events that have not completed. */
    TCUDA_STATUS_WOULD_SYNCHRONIZE = 7, /**< Refused by sync debug mode 2. */
    /** Device memory, after all reclaiming and retrying. (torch.cuda.OutOfMemoryError) */
    TCUDA_STATUS_OUT_OF_MEMORY = 20,
    TCUDA_STATUS_OUT_OF_HOST_MEMORY = 21, /**< Host memory, pinned or not. */
    TCUDA_STATUS_NO_DRIVER = 22,          /**< libcuda is absent or too old. */
    TCUDA_STATUS_NO_DEVICE = 23,          /**< Driver without a usable GPU. */
    /** NVRTC, nvJitLink, NVML, NCCL, cuBLAS, cuFile or a plug-in is absent. */
    TCUDA_STATUS_NO_LIBRARY = 24,
    TCUDA_STATUS_NOT_SUPPORTED = 25, /**< Missing symbol or feature, named in the message. */
    TCUDA_STATUS_FORKED = 26,        /**< Child of an initialised process: use spawn. */
    TCUDA_STATUS_FILE_ERROR = 27,    /**< A path that cannot be read or written. */
    TCUDA_STATUS_CUDA_ERROR = 40,    /**< A driver call failed. */
    TCUDA_STATUS_DEVICE_LOST = 41,   /**< A kernel crashed: its context is unusable for ever. */
    TCUDA_STATUS_NVRTC_ERROR = 42,   /**< NVRTC or nvJitLink failed. */
    TCUDA_STATUS_COMPILE_ERROR = 43, /**< The caller's source; the message is the compiler's log. */
    TCUDA_STATUS_NVML_ERROR = 44,    /**< NVML failed. */
    TCUDA_STATUS_NCCL_ERROR = 45,    /**< NCCL failed. */
    TCUDA_STATUS_CUBLAS_ERROR = 46,  /**< cuBLAS or cuSOLVER failed. */
    TCUDA_STATUS_CALLBACK_FAILED = 47, /**< A callback of the host returned failure. */
    TCUDA_STATUS_PEER_GONE = 48,    /**< The other process of an IPC handle or communicator died. */
    TCUDA_STATUS_CUFILE_ERROR = 49, /**< cuFile failed. */
    TCUDA_STATUS_CAPTURING = 60,    /**< Not legal while the stream captures. */
    TCUDA_STATUS_CAPTURE_INVALIDATED = 61, /**< Invalidated by an illegal call: abort it. */
    TCUDA_STATUS_INTERNAL = 99             /**< A fault of the library. */
} tcuda_status;

typedef struct tcuda_observer tcuda_observer; /**< A registered callback. */

/** Severity of a log line: TCUDA_LOG_... */
typedef int32_t tcuda_log_level;
#define TCUDA_LOG_OFF 0     /**< Nothing. */
#define TCUDA_LOG_ERROR 1   /**< Something failed. */
#define TCUDA_LOG_WARNING 2 /**< Something is likely wrong. */
#define TCUDA_LOG_INFO 3    /**< Something rare happened. */
#define TCUDA_LOG_DEBUG 4   /**< Details for debugging. */

/** Receives one log line, without its newline; any thread; must not call tcuda. */
typedef void (*tcuda_log_fn)(void *user_data, tcuda_log_level level, const char *message);

/** Frees user_data: see Callbacks on the front page. */
typedef void (*tcuda_destroy_fn)(void *user_data);

/** What tcuda_call says about a call, in memory of the caller, for any thread to read. (+) */
typedef struct tcuda_error {
    size_t struct_size;  /**< From TCUDA_INIT. */
    tcuda_status status; /**< TCUDA_STATUS_OK: the call succeeded. */
    int32_t native_code; /**< What tcuda_last_error_native gives; 0 if there is none. */
    char message[2048];  /**< What tcuda_last_error gives; "" if the call succeeded. */
} tcuda_error;

/** Version of the loaded library, to compare with TCUDA_VERSION. (+) */
TCUDA_API
uint32_t tcuda_version(void);

/**
 * Name of a status, "TCUDA_STATUS_OUT_OF_MEMORY"; "unknown" for other numbers.
 * (torch.cuda.cudaStatus)
 *
 * @param status  any number
 */
TCUDA_API
const char *tcuda_status_name(int32_t status);

/**
 * Sentence about this thread's last failure, valid until its next one; "" if there was none. What
 * is longer than 2,047 bytes, as the output of a compiler may be, is cut.
 * Successful calls keep it.
 * (the text of torch.cuda.CudaError, which torch.cuda.check_error raises)
 */
TCUDA_API
const char *tcuda_last_error(void);

/**
 * The same as tcuda_last_error, copied. (+)
 *
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_last_error_message(char *buf, size_t len, size_t *needed);

/**
 * Native code of this thread's last failure: a CUresult, an errno or a callback's; 0 if there is
 * none. (the code of torch.cuda.CudaError)
 */
TCUDA_API
int32_t tcuda_last_error_native(void);

/**
 * Sends log lines up to `level` to a function, in place of the last one. Until the first call only
 * warnings of tools that the host has turned on are written, to stderr: reports of the stream
 * sanitizer without a report function, and those of sync debug mode. The environment's TCUDA_LOG
 * (off, error, warning, info or debug) is the level up to which all lines are written to stderr;
 * it is read at initialisation. (+)
 *
 * @param level      TCUDA_LOG_OFF to TCUDA_LOG_DEBUG
 * @param callback   may be NULL: silence, also on stderr
 * @param user_data  the caller's, passed to the callback; may be NULL
 * @param destroy    called with user_data when the callback is replaced; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_set_log_callback(tcuda_log_level level, tcuda_log_fn callback, void *user_data,
    tcuda_destroy_fn destroy);

/**
 * Selects the backend; before initialisation, or after tcuda_shutdown. Without it the
 * environment's TCUDA_BACKEND and TCUDA_SIM decide, and without those it is "cuda": the library
 * never selects the simulated machine by itself. (+)
 *
 * @param name     "cuda" or "sim"
 * @param options  of the simulated machine, "devices=4,memory=16GiB"; may be NULL: TCUDA_SIM's
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_backend_select(const char *name, const char *options);

/** "cuda" or "sim": the backend that runs, or would run. (+) */
TCUDA_API
const char *tcuda_backend_name(void);

/**
 * Number of calls of a driver function so far. Exact on the simulated machine; of a GPU's driver,
 * two calls at the same moment may count as one. (+)
 *
 * @param function  "cuMemMap"; may be NULL: of all
 * @param[out] count  calls since initialisation; 0 before it
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_backend_call_count(const char *function, uint64_t *count);

/**
 * Address of a driver function as the library calls it: in the driver, or in the simulated
 * machine. So a host that makes driver calls of its own, for example to capture a stream, runs on
 * both. The function has the version that the library uses: cuStreamGetCaptureInfo that of CUDA
 * 11.3, cuGraphGetEdges that of 10.0. Calls of the host through it are not counted, and
 * tcuda_backend_inject and tcuda_backend_faults do not affect them. Initialises the library; the
 * address is valid until tcuda_shutdown. (+)
 *
 * @param function      "cuStreamBeginCapture": without the suffix of a version
 * @param[out] address  of the function, borrowed; TCUDA_STATUS_NOT_SUPPORTED where there is none
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_backend_function(const char *function, void **address);

/**
 * Makes a driver function fail, for tests of the host. (+)
 *
 * @param function  "cuMemMap"; may be NULL: any
 * @param nth       its nth call from now fails; 0 removes the rule of this function
 * @param result    its result, a CUresult: 2 for CUDA_ERROR_OUT_OF_MEMORY; 0 only if nth is 0
 * @param forever   1: every later call fails as well
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_backend_inject(const char *function, uint64_t nth, int32_t result,
    int32_t forever);

/**
 * Injects faults, for tests of the host: driver calls that fail or are slow, and devices that are
 * lost, on a GPU and on the simulated machine. The rules replace all earlier ones, also those of
 * tcuda_backend_inject; tcuda_shutdown removes them.
 *
 * A rule is "function@k=effect"; commas separate rules, and there can be 32. The function is a
 * driver call that tcuda makes, or * for any. Its kth call from now on (1: the next) has the
 * effect; if the rule ends with a !, all later calls have it as well.
 *
 * "cuMemMap@3=2", with a CUresult: the third call is not made and gives CUDA_ERROR_OUT_OF_MEMORY;
 * "*@17=999!" fails the 17th call and every later one.
 *
 * "cuMemCreate@1=slow:20ms", with a time in us, ms or s, at most 60s: the call is made after a
 * pause.
 *
 * "*@40=lost": the device of the call is lost, with code 719, or "lost:700" with one of 214, 700,
 * 709 and 714 to 718. From then on every call that works with this device or its context returns
 * that code, also calls that free and destroy; that is TCUDA_STATUS_DEVICE_LOST. Other devices
 * still work. The device stays lost until tcuda_shutdown, also when the rules are removed. After
 * that it works again, unlike a device that is really lost.
 *
 * The environment's TCUDA_FAULTS is read in the same way at initialisation, unless rules are set
 * by then; if it is wrong, the call that initialises gives TCUDA_STATUS_INVALID_ARGUMENT. (+)
 *
 * @param rules  may be NULL, as "": removes all rules
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_backend_faults(const char *rules);

/**
 * Number of driver calls that failed or were slow because of tcuda_backend_inject,
 * tcuda_backend_faults or TCUDA_FAULTS, including calls to lost devices. (+)
 *
 * @param[out] fired  since the process began
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_backend_fault_count(uint64_t *fired);

/**
 * Waits for all work and frees everything. Handles that are still alive are logged and counted,
 * and become stale; memory that was not freed becomes invalid. The next call that needs the
 * library initialises it again. Not from a callback. (+)
 *
 * @param[out] live_handles  live handles, without borrowed ones; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_shutdown(size_t *live_handles);

/**
 * Calls a function of this header by its name and writes what went wrong to an object of the
 * caller: for hosts that move a task to another thread between two calls, where tcuda_last_error
 * may tell about the call of another task. This thread's last error changes as if the function had
 * been called directly. (+)
 *
 * @param function       name of any other function that returns a status: "tcuda_malloc"
 * @param arguments      one for each parameter, in their order, 8 bytes each: integers with zero
 *                       or sign extension, the bits of a double, the address of what is pointed to
 * @param count          number of arguments, which must be that of the parameters
 * @param[in,out] error  the outcome, written whether the call succeeds or fails
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_call(const char *function, const uint64_t *arguments, size_t count,
    tcuda_error *error);

/**
 * Removes an observer. Its user_data is destroyed before this returns; if threads are in the
 * callback, perhaps this one, it is destroyed when the last of them has returned from it. (+)
 *
 * @param observer  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_observer_destroy(tcuda_observer *observer);

/* ===================================== Devices ================================================ */

#define TCUDA_SYNC_DEBUG_DEFAULT 0 /**< Hidden waits are allowed. */
/** A warning before the wait, through the log callback; to stderr if none was set. */
#define TCUDA_SYNC_DEBUG_WARN 1
#define TCUDA_SYNC_DEBUG_ERROR 2 /**< TCUDA_STATUS_WOULD_SYNCHRONIZE, and no wait. */

/**
 * What tcuda_device_set does, where it chooses a device that tcuda does not use yet, if another
 * device has a primary context in this process: TCUDA_CONTEXT_CHECK_...
 */
typedef int32_t tcuda_context_check_mode;
#define TCUDA_CONTEXT_CHECK_DEFAULT 0 /**< Nothing. */
#define TCUDA_CONTEXT_CHECK_WARN 1    /**< It logs a warning. */
/** It fails with TCUDA_STATUS_INVALID_STATE, and changes nothing. */
#define TCUDA_CONTEXT_CHECK_ERROR 2

/** Everything fixed about a device. Flags are 0 or 1. */
typedef struct tcuda_device_info {
    size_t struct_size;          /**< From TCUDA_INIT. */
    char name[256];              /**< Marketing name. */
    uint8_t uuid[16];            /**< The 16 bytes of "GPU-..." as nvidia-smi prints it. */
    uint64_t total_memory_bytes; /**< Device memory. */
    uint64_t l2_cache_bytes;     /**< Level 2 cache. */
    uint64_t shared_memory_per_block_bytes; /**< Shared memory that a block gets by default. */
    uint64_t shared_memory_per_block_optin_bytes; /**< Shared memory that a block can opt in to. */
    uint64_t shared_memory_per_multiprocessor_bytes; /**< Shared memory of a multiprocessor. */
    int32_t major;                                   /**< Compute capability. */
    int32_t minor;                                   /**< Compute capability, behind the dot. */
    int32_t multi_processor_count;                   /**< Multiprocessors. */
    int32_t warp_size;                               /**< Threads of a warp. */
    int32_t max_threads_per_block;                   /**< Limit of a launch. */
    int32_t max_threads_per_multi_processor;         /**< Threads that are resident at a time. */
    int32_t max_block_dim[3];                        /**< Limits of a launch. */
    int32_t max_grid_dim[3];                         /**< Limits of a launch. */
    int32_t regs_per_block;                          /**< 32-bit registers. */
    int32_t regs_per_multiprocessor;                 /**< 32-bit registers. */
    int32_t clock_rate_khz;                          /**< Peak clock of the multiprocessors. */
    int32_t memory_clock_rate_khz;                   /**< Peak clock of the memory. */
    int32_t memory_bus_width_bits;                   /**< Width of the memory's bus. */
    int32_t copy_engine_count;                       /**< Engines that copy while kernels run. */
    int32_t pci_domain_id;                           /**< PCI address. */
    int32_t pci_bus_id;                              /**< PCI address. */
    int32_t pci_device_id;                           /**< PCI address. */
    int32_t numa_node;              /**< Nearest NUMA node of the host; -1: unknown. */
    int32_t driver_version;         /**< Newest CUDA of the driver; 13000: CUDA 13.0. */
    int32_t is_integrated;          /**< Shares the host's memory. */
    int32_t is_multi_gpu_board;     /**< Is on a board with other GPUs. */
    int32_t is_mig;                 /**< Is a MIG instance. */
    int32_t has_ecc;                /**< Error correction is on. */
    int32_t has_cooperative_launch; /**< Supports kernels whose blocks synchronise. */
    int32_t has_gpu_direct_rdma;    /**< Other PCI devices can reach its memory. */
    int32_t has_fabric_handles;     /**< Memory can be shared over NVLink between machines. */
    int32_t has_managed_memory;     /**< Supports memory that migrates. */
    /** The host can use managed memory while kernels run. */
    int32_t has_concurrent_managed_access;
    int32_t has_virtual_memory; /**< Supports cuMemMap. */
    int32_t has_memory_pools;   /**< Supports cuMemAllocAsync. */
} tcuda_device_info;

/** Initialises now; otherwise the first call that needs it does. (torch.cuda.init) */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_init(void);

/**
 * Is the library initialised, and this not a forked child of the process that did it?
 * (torch.cuda.is_initialized)
 *
 * @param[out] initialized  whether it is
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_is_initialized(bool *initialized);

/**
 * Is there a usable GPU, or a simulated one? False without a driver, and in the forked child of a
 * process that had initialised the library. A backend that was asked for and cannot start, or a
 * wrong value of TCUDA_BACKEND or TCUDA_SIM, is a status. Never creates a context.
 * (torch.cuda.is_available)
 *
 * @param[out] available  whether there is one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_is_available(bool *available);

/**
 * Devices visible to this process, CUDA_VISIBLE_DEVICES respected; 0 without a driver. Starts the
 * driver, but does not initialise the library. TCUDA_STATUS_FORKED in the forked child of a
 * process that had started the driver, where torch gives 0. (torch.cuda.device_count)
 *
 * @param[out] count  0 or more
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_count(int32_t *count);

/**
 * This thread's current device: that of its current CUDA context when that is a primary one, else
 * the one that the thread set, 0 at first. TCUDA_STATUS_NO_DRIVER without a driver.
 * (torch.cuda.current_device)
 *
 * @param[out] device  its ordinal
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_current(int32_t *device);

/**
 * Makes a device current for this thread, here and in the CUDA driver.
 * TCUDA_STATUS_INVALID_STATE if tcuda_context_check_mode_set wants that, and nothing changes.
 * (torch.cuda.set_device)
 *
 * @param device  ordinal below tcuda_device_count(); negative: no-op, also without a driver
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_set(int32_t device);

/**
 * The devices on which this process has a primary context, whichever library created it.
 * Initialises the library, and creates no context. (torch.cuda._primary_context_devices)
 *
 * @param[out] devices   ordinals, the first `capacity` of them; may be NULL when `capacity` is 0
 * @param      capacity  length of the list
 * @param[out] count     number of such devices
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_primary_contexts(int32_t *devices, size_t capacity, size_t *count);

/**
 * The mode that tcuda_context_check_mode_set set; without it that of TCUDA_CHECK_STRAY_CONTEXT in
 * the environment, or TORCH_CUDA_CHECK_STRAY_CONTEXT: "warn", "error", or anything else for
 * TCUDA_CONTEXT_CHECK_DEFAULT. (torch.cuda: TORCH_CUDA_CHECK_STRAY_CONTEXT)
 *
 * @param[out] mode  TCUDA_CONTEXT_CHECK_...
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_context_check_mode_get(tcuda_context_check_mode *mode);

/**
 * Sets the mode of the whole process, until tcuda_shutdown.
 * (torch.cuda: TORCH_CUDA_CHECK_STRAY_CONTEXT)
 *
 * @param mode  TCUDA_CONTEXT_CHECK_...
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_context_check_mode_set(tcuda_context_check_mode mode);

/**
 * tcuda_device_set that also returns the device that was current before; undo it with
 * tcuda_device_set(previous). (torch.cuda.device)
 *
 * @param device         ordinal below tcuda_device_count(); negative: no-op, also without a driver
 * @param[out] previous  ordinal; -1 if `device` is negative and there is no device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_exchange(int32_t device, int32_t *previous);

/**
 * The device that an address belongs to; -1 when it is not device memory, as none is without a
 * driver. (torch.cuda.device_of)
 *
 * @param ptr          any address, also inside a block; may be NULL: -1
 * @param[out] device  its ordinal, or -1
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_of(const void *ptr, int32_t *device);

/**
 * Name of a device, "NVIDIA H200". (torch.cuda.get_device_name)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE (-1); INVALID_DEVICE for other negative
 *                     ones
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_name(int32_t device, char *buf, size_t len, size_t *needed);

/**
 * Compute capability of a device, 9 and 0. (torch.cuda.get_device_capability;
 * torch.cuda.is_bf16_supported and torch.cuda.is_tf32_supported: 8.0 and above)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE (-1); INVALID_DEVICE for other negative ones
 * @param[out] major  9 of 9.0
 * @param[out] minor  0 of 9.0
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_capability(int32_t device, int32_t *major, int32_t *minor);

/**
 * Everything about a device. (torch.cuda.get_device_properties)
 *
 * @param device         ordinal, or TCUDA_CURRENT_DEVICE
 * @param[in,out] info  start from TCUDA_INIT(tcuda_device_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_properties(int32_t device, tcuda_device_info *info);

/**
 * Can `device` map the memory of `peer`? A device is not its own peer.
 * (torch.cuda.can_device_access_peer)
 *
 * @param device, peer   ordinals, or TCUDA_CURRENT_DEVICE
 * @param[out] possible  whether it can
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_can_access_peer(int32_t device, int32_t peer, bool *possible);

/**
 * Lets kernels of `device` use the memory of `peer`, including all present and future memory of
 * the cache; again: no-op. TCUDA_STATUS_NOT_SUPPORTED where the machine cannot. (+)
 *
 * @param device, peer  ordinals, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_enable_peer_access(int32_t device, int32_t peer);

/**
 * Waits for all work of a device. (torch.cuda.synchronize)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_synchronize(int32_t device);

/**
 * What happens when a call makes the host wait for the device in an unobvious place.
 * (torch.cuda.get_sync_debug_mode)
 *
 * @param[out] mode  TCUDA_SYNC_DEBUG_...
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sync_debug_mode_get(int32_t *mode);

/**
 * Sets the sync debug mode of the whole process, until tcuda_shutdown. The mode applies to hidden
 * waits for a device: tcuda_stream_synchronize and copies from and to pageable memory always, as
 * in PyTorch; collective calls whose result is in memory of the host; tcuda_mem_pool_sleep and
 * _wake; and memory that is given back while streams use it, as by tcuda_memory_empty_cache. A
 * refused call gives TCUDA_STATUS_WOULD_SYNCHRONIZE; one that destroys something waits
 * nevertheless, and is logged. Calls that are documented to wait, such as tcuda_device_synchronize
 * and tcuda_event_synchronize, are exempt. The first call that turns the mode on logs a warning
 * that lists the exempt waits. (torch.cuda.set_sync_debug_mode)
 *
 * @param mode  TCUDA_SYNC_DEBUG_...
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sync_debug_mode_set(int32_t mode);

/**
 * Architectures of the kernels built in, "compute_52", with blanks between them where there are
 * more. (torch.cuda.get_arch_list)
 *
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_arch_list(char *buf, size_t len, size_t *needed);

/**
 * The same as compiler flags, in torch.cuda.get_gencode_flags' form.
 * (torch.cuda.get_gencode_flags)
 *
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_gencode_flags(char *buf, size_t len, size_t *needed);

/**
 * A cublasHandle_t of this thread and device, set to the thread's current stream of the device.
 * Its workspace is memory of the cache: for each handle and stream the size in
 * CUBLAS_WORKSPACE_CONFIG, else 32 MiB from Hopper on and 8320 KiB before. The thread gets the
 * same handle each time; call this again after a change of the stream, and in a capture, which
 * gets memory of its graph. When the thread ends, other threads reuse the handle, until
 * tcuda_shutdown destroys it. The workspace of an external stream is freed some time after its
 * last handle (tcuda_stream_destroy): queue no cuBLAS work there after that.
 * TCUDA_STATUS_NO_LIBRARY without cuBLAS; TCUDA_STATUS_NOT_SUPPORTED on the simulated machine,
 * where TCUDA_CUBLAS_PATH may name a stand-in for tests. (torch.cuda.current_blas_handle)
 *
 * @param device              ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] cublas_handle  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_blas_handle(int32_t device, struct cublasContext **cublas_handle);

/**
 * A cusolverDnHandle_t of this thread and device, set to the thread's current stream of the
 * device: tcuda_blas_handle for cuSOLVER, which takes its workspaces as arguments.
 * TCUDA_STATUS_NO_LIBRARY without cuSOLVER; TCUDA_STATUS_NOT_SUPPORTED on the simulated machine,
 * where TCUDA_CUSOLVER_PATH may name a stand-in for tests. (torch.cuda.current_solver_handle)
 *
 * @param device                ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] cusolver_handle  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_solver_handle(int32_t device, struct cusolverDnContext **cusolver_handle);

/* ===================================== Streams and events ===================================== */

#define TCUDA_EVENT_TIMING 1 /**< Flag of tcuda_event_create: can be timed. */
/** Flag of tcuda_event_create: synchronising sleeps instead of spinning. */
#define TCUDA_EVENT_BLOCKING 2
/** Flag of tcuda_event_create: has a handle for other processes; excludes TIMING. */
#define TCUDA_EVENT_INTERPROCESS 4
/** Flag of tcuda_event_create: a node of its own when recorded or waited on in a capture. */
#define TCUDA_EVENT_EXTERNAL 8

typedef struct tcuda_event tcuda_event;   /**< A point in a stream. */
typedef struct tcuda_stream tcuda_stream; /**< An ordered queue of device work. */

/**
 * Runs on a driver thread in stream order. As for host functions of CUDA, it must not call CUDA or
 * tcuda, nor wait for work of a device. A call of tcuda that waits for the device, calls the
 * driver or uses a graph returns TCUDA_STATUS_INVALID_STATE there and does nothing. So
 * tcuda_graph_destroy and tcuda_graphed_callable_destroy leave the handle valid, and tcuda_free
 * leaves the block allocated where another thread waits for the block's stream; call them again
 * from another thread.
 */
typedef void (*tcuda_host_fn)(void *user_data);

/** Gives another process access to an event: plain data, to be sent. */
typedef struct tcuda_ipc_event_handle {
    uint8_t bytes[64]; /**< Opaque to the host. */
} tcuda_ipc_event_handle;

/**
 * One of 32 pooled streams per priority, round robin: the 33rd is the first again.
 * (torch.cuda.Stream)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE; INVALID_DEVICE for other negative ones
 * @param priority     0, or lower for more urgent; clamped to tcuda_stream_priority_range
 * @param[out] stream  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_create(int32_t device, int32_t priority, tcuda_stream **stream);

/**
 * Gives a stream back to its pool; queued work continues. A no-op on borrowed handles.
 * (the end of a torch.cuda.Stream)
 *
 * @param stream  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_stream_destroy(tcuda_stream *stream);

/**
 * Wraps a native stream, which must outlive the handle and is not destroyed with it. Before its
 * last handle is destroyed the stream must no longer be any thread's current stream: memory that
 * was used on it then waits for the work that it holds at that moment, and for nothing later. When
 * the last handle from this function is destroyed, the library forgets the stream, and handles of
 * it from tcuda_stream_current and tcuda_stream_exchange become stale.
 * (torch.cuda.ExternalStream, torch.cuda.get_stream_from_external)
 *
 * @param device     the device of the stream, whose primary context it must belong to
 * @param cu_stream  may be NULL: the device's default stream
 * @param[out] stream  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_from_external(int32_t device, struct CUstream_st *cu_stream,
    tcuda_stream **stream);

/**
 * This thread's current stream of a device; borrowed. Compare streams by their ids.
 * (torch.cuda.current_stream)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] stream  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_current(int32_t device, tcuda_stream **stream);

/**
 * The device's default (legacy NULL) stream; borrowed. (torch.cuda.default_stream)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] stream  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_default(int32_t device, tcuda_stream **stream);

/**
 * Makes a stream and its device current for this thread. (torch.cuda.set_stream)
 *
 * @param stream  NULL: the one that is current, which changes nothing, also without a driver
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_set_current(tcuda_stream *stream);

/**
 * tcuda_stream_set_current that also returns what was current before. Undo it by
 * tcuda_stream_set_current(previous), then tcuda_device_set(previous_device) if that is another
 * device than the stream's. (torch.cuda.stream, torch.cuda.StreamContext)
 *
 * @param stream                NULL: the one that is current, which changes nothing
 * @param[out] previous         the current stream of the stream's device, borrowed; without a
 *                              device NULL, as `stream` must be then
 * @param[out] previous_device  the current device; without one -1
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_exchange(tcuda_stream *stream, tcuda_stream **previous,
    int32_t *previous_device);

/**
 * Has all queued work finished? (torch.cuda.Stream.query)
 *
 * @param stream     NULL is the current stream
 * @param[out] done  whether it has
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_query(tcuda_stream *stream, bool *done);

/**
 * Waits for all queued work. TCUDA_STATUS_WOULD_SYNCHRONIZE in mode TCUDA_SYNC_DEBUG_ERROR.
 * (torch.cuda.Stream.synchronize)
 *
 * @param stream  NULL is the current stream
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_synchronize(tcuda_stream *stream);

/**
 * Work queued from now on waits for an event; the host does not. No-op if it was never recorded.
 * (torch.cuda.Stream.wait_event)
 *
 * @param stream  that waits; NULL is the current stream
 * @param event   not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_wait_event(tcuda_stream *stream, tcuda_event *event);

/**
 * Work queued from now on waits for what `other` holds now; any two devices.
 * (torch.cuda.Stream.wait_stream)
 *
 * @param stream, other  NULL: the current stream of the current device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_wait_stream(tcuda_stream *stream, tcuda_stream *other);

/**
 * tcuda_event_record, stream first. (torch.cuda.Stream.record_event)
 *
 * @param stream  NULL is the current stream
 * @param event   not NULL; a second record replaces the first
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_record_event(tcuda_stream *stream, tcuda_event *event);

/**
 * Creates an event and records it: tcuda_event_create, then tcuda_event_record.
 * (torch.cuda.Stream.record_event without an event)
 *
 * @param stream      NULL is the current stream
 * @param flags       TCUDA_EVENT_... combined; 0 is torch's event
 * @param[out] event  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_record_new_event(tcuda_stream *stream, uint32_t flags,
    tcuda_event **event);

/**
 * Queues a call of a host function, which runs once the stream gets there. `destroy` runs after
 * it, and also when the function never runs because the device was lost. In a capture of a
 * tcuda_graph the function runs at each replay, and `destroy` once: when no graph contains it any
 * more, neither this one nor one that was updated by it, and the replays are over. A capture that
 * was begun without tcuda refuses it with TCUDA_STATUS_CAPTURING. (+)
 *
 * @param stream     NULL is the current stream
 * @param callback   the host function
 * @param user_data  the caller's, passed to the callback; may be NULL
 * @param destroy    called with user_data, once; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_add_callback(tcuda_stream *stream, tcuda_host_fn callback,
    void *user_data, tcuda_destroy_fn destroy);

/**
 * Ordinal of a stream's device. (torch.cuda.Stream.device, device_index)
 *
 * @param stream       NULL is the current stream
 * @param[out] device  its ordinal
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_device(tcuda_stream *stream, int32_t *device);

/**
 * Priority that the stream has. (torch.cuda.Stream.priority)
 *
 * @param stream         NULL is the current stream
 * @param[out] priority  0, or less if it is more urgent
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_priority(tcuda_stream *stream, int32_t *priority);

/**
 * torch's id of a stream: 0 for default streams; equal for equal streams of a device.
 * (torch.cuda.Stream.stream_id)
 *
 * @param stream   NULL is the current stream
 * @param[out] id  0 for default streams
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_id(tcuda_stream *stream, int64_t *id);

/**
 * The CUstream, NULL for default streams; borrowed. (torch.cuda.Stream.cuda_stream)
 *
 * @param stream          NULL is the current stream
 * @param[out] cu_stream  borrowed; NULL for default streams
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_native(tcuda_stream *stream, struct CUstream_st **cu_stream);

/**
 * Priorities of a device: least urgent (0) and most urgent (0 to -3).
 * (torch.cuda.Stream.priority_range)
 *
 * @param device         ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] least     0
 * @param[out] greatest  0 to -3
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_priority_range(int32_t device, int32_t *least, int32_t *greatest);

/**
 * An event; it gets its device and CUevent at the first record. (torch.cuda.Event)
 *
 * @param flags        TCUDA_EVENT_... combined, or 0
 * @param[out] event   the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_create(uint32_t flags, tcuda_event **event);

/**
 * Recycles an event; streams that wait for it still do. (the end of a torch.cuda.Event)
 *
 * @param event  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_event_destroy(tcuda_event *event);

/**
 * Captures the present end of a stream's queue; a second record replaces it. The first record
 * binds the event to the stream's device. (torch.cuda.Event.record)
 *
 * @param event   not NULL
 * @param stream  NULL is the current stream
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_record(tcuda_event *event, tcuda_stream *stream);

/**
 * Has the recorded work completed? True if it was never recorded. (torch.cuda.Event.query)
 *
 * @param event      not NULL
 * @param[out] done  whether it has
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_query(tcuda_event *event, bool *done);

/**
 * Waits until the recorded work has completed; returns at once if it was never recorded.
 * (torch.cuda.Event.synchronize)
 *
 * @param event  not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_synchronize(tcuda_event *event);

/**
 * tcuda_stream_wait_event, event first; no-op if it was never recorded. (torch.cuda.Event.wait)
 *
 * @param event   not NULL
 * @param stream  that waits; NULL is the current stream
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_wait(tcuda_event *event, tcuda_stream *stream);

/**
 * Time between two TIMING events that have completed; TCUDA_STATUS_NOT_READY before that.
 * (torch.cuda.Event.elapsed_time)
 *
 * @param start            the earlier event, with TCUDA_EVENT_TIMING
 * @param end              the later event, with TCUDA_EVENT_TIMING
 * @param[out] elapsed_ms  milliseconds from `start` to `end`
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_elapsed_ms(tcuda_event *start, tcuda_event *end, float *elapsed_ms);

/**
 * Ordinal of an event's device, -1 before the first record. (torch.cuda.Event.device)
 *
 * @param event        not NULL
 * @param[out] device  its ordinal, or -1
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_device(tcuda_event *event, int32_t *device);

/**
 * The CUevent, NULL before the first record; borrowed. (torch.cuda.Event.cuda_event)
 *
 * @param event          not NULL
 * @param[out] cu_event  borrowed; NULL before the first record
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_native(tcuda_event *event, struct CUevent_st **cu_event);

/**
 * Handle of an INTERPROCESS event for other processes, which open it with
 * tcuda_event_from_ipc_handle. An event that was never recorded is bound to this thread's current
 * device. Destroy the event after the others have destroyed theirs. (torch.cuda.Event.ipc_handle)
 *
 * @param event        with TCUDA_EVENT_INTERPROCESS
 * @param[out] handle  plain data, to be sent to the other process
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_ipc_handle(tcuda_event *event, tcuda_ipc_event_handle *handle);

/**
 * Opens another process's event, which can be waited for, queried and recorded here.
 * (torch.cuda.Event.from_ipc_handle)
 *
 * @param device      ordinal of the event's device here, or TCUDA_CURRENT_DEVICE
 * @param handle      what tcuda_event_ipc_handle wrote in the other process
 * @param[out] event  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_event_from_ipc_handle(int32_t device, const tcuda_ipc_event_handle *handle,
    tcuda_event **event);

/**
 * Copies bytes between any two addresses, of the host or of any device. Only copies of pageable
 * host memory wait, which TCUDA_SYNC_DEBUG_ERROR refuses with TCUDA_STATUS_WOULD_SYNCHRONIZE. The
 * two ranges must not overlap. They are not checked: an invalid address may lose the device
 * (TCUDA_STATUS_DEVICE_LOST), as in CUDA. (+)
 *
 * @param dst, src  device or host memory; may be NULL if bytes is 0
 * @param bytes     length of both ranges; 0: nothing is done
 * @param stream    NULL: the current stream of dst's device, else of src's
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_copy(void *dst, const void *src, size_t bytes, tcuda_stream *stream);

/**
 * Copies `rows` rows of `width_bytes` each; a pitch is the distance between two rows. (+)
 *
 * @param dst, src         device or host memory; may be NULL if nothing is to be copied
 * @param dst_pitch_bytes  at least width_bytes
 * @param src_pitch_bytes  at least width_bytes
 * @param width_bytes      of a row; 0: nothing is done
 * @param rows             how many; 0: nothing is done
 * @param stream           NULL: the current stream of dst's device, else of src's
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_copy_2d(void *dst, size_t dst_pitch_bytes, const void *src,
    size_t src_pitch_bytes, size_t width_bytes, size_t rows, tcuda_stream *stream);

/**
 * Writes a value repeatedly. As for tcuda_copy, the range is not checked. (+)
 *
 * @param ptr          device memory, of any alignment; may be NULL if count is 0
 * @param value        host memory, read before the call returns
 * @param value_bytes  1 to 16
 * @param count        how many times
 * @param stream       NULL: the current stream of ptr's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_fill(void *ptr, const void *value, size_t value_bytes, size_t count,
    tcuda_stream *stream);

/* ===================================== Green contexts ========================================= */

/**
 * Flag of tcuda_sm_partition_split: multiprocessors one by one, so that parts may be smaller, but
 * hold no larger clusters.
 */
#define TCUDA_SM_SPLIT_IGNORE_COSCHEDULING 1
/** Flag of tcuda_sm_partition_split: parts that hold the largest clusters. */
#define TCUDA_SM_SPLIT_MAX_CLUSTER 2
/** Flag of a group: multiprocessors that do not meet its other conditions fill it up. */
#define TCUDA_SM_GROUP_BACKFILL 1
/** Flag of a group: all of one locality domain. CUDA 13.4. */
#define TCUDA_SM_GROUP_LOCALITY_DOMAIN 2

#define TCUDA_WORKQUEUE_DEFAULT 0 /**< Work queues as the driver chooses. */
/** Work queues that all contexts of the device share. (torch: "device_ctx") */
#define TCUDA_WORKQUEUE_DEVICE 1
/** If possible, work queues that no other balanced green context uses. (torch: "balanced") */
#define TCUDA_WORKQUEUE_BALANCED 2

/** A context with a part of a device's multiprocessors. */
typedef struct tcuda_green_context tcuda_green_context;
/** A set of multiprocessors of a device. It describes them and does not reserve them. */
typedef struct tcuda_sm_partition tcuda_sm_partition;

/** A group of tcuda_sm_partition_split_groups; zero is the default of each field. */
typedef struct tcuda_sm_group {
    /**
     * Number of multiprocessors, a multiple of 2 and of coscheduled_sm_count; 0: as many as are
     * left.
     */
    uint32_t sm_count;
    /** How many are scheduled together, for clusters: 2 to 32; 0: the driver's default. */
    uint32_t coscheduled_sm_count;
    uint32_t preferred_coscheduled_sm_count; /**< How many if possible; 0: the driver's default. */
    uint32_t flags;                          /**< TCUDA_SM_GROUP_... combined, or 0. */
    /** With TCUDA_SM_GROUP_LOCALITY_DOMAIN: 0 to tcuda_device_locality_domains - 1. */
    uint32_t locality_domain;
} tcuda_sm_group;

/** What a partition or a green context consists of. */
typedef struct tcuda_sm_partition_info {
    size_t struct_size; /**< From TCUDA_INIT. */
    int32_t device;     /**< Ordinal. */
    uint32_t sm_count;  /**< Number of multiprocessors. */
    /** The smallest part of a split; 0: not known, as of parts of a split. */
    uint32_t min_part_sm_count;
    /**
     * How many multiprocessors are scheduled together, which sizes of parts are multiples of; 0:
     * not known.
     */
    uint32_t coscheduled_sm_count;
    int32_t locality_domain; /**< The locality domain of all; -1: none, or not known. */
} tcuda_sm_partition_info;

/** Options of tcuda_green_context_create. */
typedef struct tcuda_green_context_options {
    size_t struct_size; /**< From TCUDA_INIT. */
    /**
     * Without a partition: at least so many multiprocessors, rounded up as by
     * tcuda_sm_partition_split; 0: all.
     */
    uint32_t sm_count;
    int32_t workqueue_scope; /**< TCUDA_WORKQUEUE_...; others than DEFAULT need CUDA 13.1. */
    /**
     * With a scope: the number of streams whose work is expected to run at a time, up to
     * tcuda_device_workqueue_concurrency; 0: the driver's default.
     */
    uint32_t workqueue_concurrency;
} tcuda_green_context_options;

/**
 * Number of locality domains of a device: parts of its multiprocessors with memory nearby. 1 where
 * the driver is older than CUDA 13.4, or the device has no parts.
 * (torch.cuda.green_contexts.get_num_locality_domains; torch.cuda.green_contexts.
 * is_localization_supported is whether there are more than 1)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] count  1 or more
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_locality_domains(int32_t device, int32_t *count);

/**
 * The greatest concurrency of work queues: streams whose work the driver can submit side by side.
 * TCUDA_STATUS_NOT_SUPPORTED before CUDA 13.1.
 * (torch.cuda.green_contexts.GreenContext.max_workqueue_concurrency)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] count  1 or more
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_device_workqueue_concurrency(int32_t device, uint32_t *count);

/**
 * All multiprocessors of a device. TCUDA_STATUS_NOT_SUPPORTED before CUDA 12.4.
 * (torch.cuda.green_contexts.SMPartition.from_device)
 *
 * @param device          ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] partition  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sm_partition_from_device(int32_t device, tcuda_sm_partition **partition);

/**
 * Divides a partition into disjoint parts of one size: min_sm_count, or the next larger number
 * that the device can schedule together (on compute capability 9.0 a multiple of 8, without
 * coscheduling of 2). TCUDA_STATUS_INVALID_STATE for a part of a split: create a green context
 * with it, and split tcuda_green_context_partition.
 * (torch.cuda.green_contexts.SMPartition.split, of one group;
 * torch.cuda.green_contexts.GreenContext.split)
 *
 * @param partition        not NULL
 * @param min_sm_count     0 to the partition's sm_count; 0: the smallest part
 * @param flags            a TCUDA_SM_SPLIT_... flag, or 0
 * @param capacity         the length of `partitions`, at least 1
 * @param[out] partitions  the caller's, each to be destroyed
 * @param[out] count       number of parts, at most `capacity`
 * @param[out] remainder   what is left, the caller's; NULL if nothing is; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sm_partition_split(tcuda_sm_partition *partition, uint32_t min_sm_count,
    uint32_t flags, uint32_t capacity, tcuda_sm_partition **partitions, uint32_t *count,
    tcuda_sm_partition **remainder);

/**
 * Divides a partition into disjoint parts with conditions of their own, in the order of `groups`.
 * TCUDA_STATUS_NOT_SUPPORTED before CUDA 13.1; TCUDA_STATUS_INVALID_STATE for a part of a split,
 * as for tcuda_sm_partition_split. (torch.cuda.green_contexts.SMPartition.split)
 *
 * @param partition        not NULL
 * @param groups           `count` groups
 * @param count            at least 1
 * @param[out] partitions  `count` parts, the caller's, each to be destroyed
 * @param[out] remainder   what is left, the caller's; NULL if nothing is; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sm_partition_split_groups(tcuda_sm_partition *partition,
    const tcuda_sm_group *groups, uint32_t count, tcuda_sm_partition **partitions,
    tcuda_sm_partition **remainder);

/**
 * What a partition consists of. (torch.cuda.green_contexts.SMPartition.sm_count, .device_id,
 * .coscheduled_sm_count, .locality_domain_id)
 *
 * @param partition     not NULL
 * @param[in,out] info  start from TCUDA_INIT(tcuda_sm_partition_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sm_partition_properties(tcuda_sm_partition *partition,
    tcuda_sm_partition_info *info);

/**
 * The driver's description of a partition, a CUdevResource, for cuDevResourceGenerateDesc. (+)
 *
 * @param partition    not NULL
 * @param[out] buf     may be NULL if len is 0; cut to `len` bytes
 * @param len          room in buf, in bytes
 * @param[out] needed  144 bytes; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sm_partition_native(tcuda_sm_partition *partition, void *buf, size_t len,
    size_t *needed);

/**
 * Destroys a partition; green contexts of it stay.
 * (the end of a torch.cuda.green_contexts.SMPartition)
 *
 * @param partition  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_sm_partition_destroy(tcuda_sm_partition *partition);

/**
 * Creates a green context: its streams run kernels on the multiprocessors of a partition and
 * nowhere else. Memory, events, kernels and graphs are those of the device; work that is captured
 * on its streams runs on its multiprocessors at each replay, on whatever stream. Contexts of one
 * partition share its multiprocessors. Makes the device's primary context.
 * TCUDA_STATUS_NOT_SUPPORTED before CUDA 12.4.
 * (torch.cuda.green_contexts.GreenContext, torch.cuda.green_contexts.GreenContext.create)
 *
 * @param device        ordinal, or TCUDA_CURRENT_DEVICE; with a partition it is that of the
 *                      partition, or TCUDA_CURRENT_DEVICE
 * @param partition     may be NULL: options->sm_count, or all multiprocessors
 * @param options       may be NULL: defaults; without a partition it has sm_count or a
 *                      workqueue_scope
 * @param[out] context  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_create(int32_t device, tcuda_sm_partition *partition,
    const tcuda_green_context_options *options, tcuda_green_context **context);

/**
 * What a green context consists of. (torch.cuda.green_contexts.GreenContext.sm_count, .device_id,
 * .locality_domain_id)
 *
 * @param context       not NULL
 * @param[in,out] info  start from TCUDA_INIT(tcuda_sm_partition_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_properties(tcuda_green_context *context,
    tcuda_sm_partition_info *info);

/**
 * The multiprocessors of a green context, which can be split further. The driver's context lives
 * as long as this partition and its parts. (torch.cuda.green_contexts.GreenContext.sm_partition)
 *
 * @param context         not NULL
 * @param[out] partition  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_partition(tcuda_green_context *context,
    tcuda_sm_partition **partition);

/**
 * One of 32 streams of a green context, round robin: the 33rd is the first again. It is not
 * ordered relative to the default stream. (torch.cuda.green_contexts.GreenContext.Stream)
 *
 * @param context      not NULL
 * @param[out] stream  the caller's, to be destroyed; it may outlive the green context's handle
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_stream_create(tcuda_green_context *context, tcuda_stream **stream);

/**
 * Makes the green context the current context of this thread, in the driver as well, its device
 * the current one, and one of its streams the current stream, which waits for the one that was
 * current. Work of tcuda on the current stream then runs on its multiprocessors, and so does work
 * that the host gives CUDA itself, also on the NULL stream. tcuda_stream_default stays the stream
 * of the primary context.
 * TCUDA_STATUS_INVALID_STATE if it is set already, here or on another thread.
 * (torch.cuda.green_contexts.GreenContext.set_context)
 *
 * @param context  not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_set(tcuda_green_context *context);

/**
 * Undoes tcuda_green_context_set on the same thread: the stream that was current then waits for
 * the current one, and is current again. TCUDA_STATUS_INVALID_STATE, and nothing changes, if it is
 * not set on this thread or another context is current.
 * (torch.cuda.green_contexts.GreenContext.pop_context)
 *
 * @param context  not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_pop(tcuda_green_context *context);

/**
 * The driver's green context, and the CUcontext that stands for it. Both are valid until the green
 * context is destroyed. The host removes the CUcontext from each thread's stack before: a driver
 * ends the process where one is popped that was destroyed. (+)
 *
 * @param context          not NULL
 * @param[out] green       borrowed; may be NULL
 * @param[out] cu_context  borrowed; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_green_context_native(tcuda_green_context *context, struct CUgreenCtx_st **green,
    struct CUctx_st **cu_context);

/**
 * Destroys a green context; queued work continues. If it is set on this thread, it is popped
 * first; TCUDA_STATUS_INVALID_STATE if another thread has set it. The driver's context ends when
 * its streams have no handles, no thread's current stream is one of them, and no allocated or
 * cached memory belongs to them: not before the next tcuda_green_context_create or _destroy, or
 * tcuda_shutdown. (the end of a torch.cuda.green_contexts.GreenContext)
 *
 * @param context  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_green_context_destroy(tcuda_green_context *context);

/* ===================================== Memory ================================================= */

typedef struct tcuda_allocation tcuda_allocation; /**< An allocated block with a handle. */

/**
 * Allocates memory in the order of a stream: work queued on it may use the block at once, and
 * after tcuda_free the block is reused in that order. (torch.cuda.caching_allocator_alloc)
 *
 * @param bytes     any size; 0: NULL and OK
 * @param device    ordinal, TCUDA_CURRENT_DEVICE: the stream's, else this thread's current one
 * @param stream    NULL: the current stream of the device
 * @param[out] ptr  the block, aligned to 512 bytes unless another library's allocator gave it; the
 *                  caller's, to be freed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_malloc(size_t bytes, int32_t device, tcuda_stream *stream, void **ptr);

/**
 * Gives a block back to the cache, in the order of its stream; the host does not wait.
 * (torch.cuda.caching_allocator_delete)
 *
 * @param ptr  what tcuda_malloc gave; may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_free(void *ptr);

/**
 * Records that the block is also used on `stream`: once freed, it is not reused before the work
 * queued there at that time is done. No effect for the stream that it was allocated on.
 * (Tensor.record_stream)
 *
 * @param ptr     what tcuda_malloc gave; may be NULL: no-op
 * @param stream  NULL: the current stream of ptr's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_record_stream(void *ptr, tcuda_stream *stream);

/**
 * tcuda_malloc with a handle. (torch.cuda.caching_allocator_alloc)
 *
 * @param bytes            any size; 0: an allocation without a block
 * @param device           ordinal, or TCUDA_CURRENT_DEVICE: as for tcuda_malloc
 * @param stream           NULL: the current stream of the device
 * @param[out] allocation  the caller's, to be destroyed, which frees the block
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocation_create(size_t bytes, int32_t device, tcuda_stream *stream,
    tcuda_allocation **allocation);

/**
 * Frees the block of an allocation. (torch.cuda.caching_allocator_delete)
 *
 * @param allocation  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_allocation_destroy(tcuda_allocation *allocation);

/**
 * First byte of an allocation; NULL if it has none. (+)
 *
 * @param allocation  from tcuda_allocation_create
 * @param[out] ptr    borrowed: valid until the allocation is destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocation_pointer(tcuda_allocation *allocation, void **ptr);

/**
 * Requested size of an allocation. (+)
 *
 * @param allocation  from tcuda_allocation_create
 * @param[out] bytes  as it was requested
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocation_bytes(tcuda_allocation *allocation, size_t *bytes);

/**
 * Ordinal of an allocation's device. (+)
 *
 * @param allocation   from tcuda_allocation_create
 * @param[out] device  its ordinal
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocation_device(tcuda_allocation *allocation, int32_t *device);

/**
 * The stream of an allocation; borrowed. (+)
 *
 * @param allocation   from tcuda_allocation_create
 * @param[out] stream  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocation_stream(tcuda_allocation *allocation, tcuda_stream **stream);

/**
 * Returns all unused cached memory, of all devices, to the driver; waits for pending frees, for
 * the work of streams whose memory is returned, and for all work of a device if a pool has ended
 * there whose memory a graph of the host used (tcuda_mem_pool_destroy). (torch.cuda.empty_cache)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_empty_cache(void);

/**
 * The contiguous memory that holds an address: the segment of the cache, or the allocation of the
 * driver or of another library. Only tcuda's memory of devices: others are
 * TCUDA_STATUS_INVALID_POINTER. (+: c10's getBaseAllocation)
 *
 * @param ptr         any address in it; not NULL
 * @param[out] base   its first byte, borrowed
 * @param[out] bytes  its length
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_base(const void *ptr, void **base, size_t *bytes);

/**
 * Free and total memory of a device as the driver reports it. (torch.cuda.mem_get_info)
 *
 * @param device            ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] free_bytes   free memory, for any process
 * @param[out] total_bytes  all memory of the device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_info(int32_t device, size_t *free_bytes, size_t *total_bytes);

/* ---- Statistics ---- */

/**
 * A quantity: its present value, its highest value, the sum of all increases and of all decreases;
 * the last three since they were reset.
 */
typedef struct tcuda_stat {
    uint64_t current;   /**< Present value. */
    uint64_t peak;      /**< Highest value. */
    uint64_t allocated; /**< Sum of all increases. */
    uint64_t freed;     /**< Sum of all decreases. */
} tcuda_stat;

/**
 * A quantity of all blocks, of those up to 1 MiB, and of those above. Quantities of memory
 * (segment, reserved_bytes, inactive_split) are split by is_small of tcuda_segment_info instead:
 * so active_bytes of small_pool may exceed its reserved_bytes.
 */
typedef struct tcuda_stat_by_pool {
    tcuda_stat all;        /**< All. */
    tcuda_stat small_pool; /**< Up to 1 MiB. */
    tcuda_stat large_pool; /**< Above 1 MiB. */
} tcuda_stat_by_pool;

/** torch.cuda.memory_stats(), the same names. */
typedef struct tcuda_memory_statistics {
    size_t struct_size;                 /**< From TCUDA_INIT. */
    tcuda_stat_by_pool allocation;      /**< Allocated blocks. */
    tcuda_stat_by_pool allocated_bytes; /**< Their bytes, rounded up to 512. */
    tcuda_stat_by_pool active;       /**< Allocated blocks, and freed ones that wait for streams. */
    tcuda_stat_by_pool active_bytes; /**< Bytes of active blocks, rounded up to 512. */
    tcuda_stat_by_pool requested_bytes; /**< Requested bytes of active blocks. */
    tcuda_stat_by_pool segment;         /**< Contiguous ranges of memory from the driver. */
    tcuda_stat_by_pool reserved_bytes;  /**< Bytes obtained from the driver. */
    /** Free blocks of a stream and pool in which other blocks are in use. */
    tcuda_stat_by_pool inactive_split;
    tcuda_stat_by_pool inactive_split_bytes; /**< Their bytes. */
    /** Allocated blocks that were of at least max_split_size when they were allocated. */
    tcuda_stat oversize_allocations;
    /** Always zero: segments grow and shrink, and none is kept whole for its size. */
    tcuda_stat oversize_segments;
    /** Attempts to allocate after all reusable memory was reclaimed. */
    uint64_t num_alloc_retries;
    uint64_t num_ooms;             /**< Allocations that failed for want of memory. */
    uint64_t num_sync_all_streams; /**< Times that the host waited for all streams. */
    uint64_t num_device_alloc;     /**< Times that memory came from the driver. */
    uint64_t num_device_free;      /**< Times that memory went back to it. */
    uint64_t max_split_size;     /**< From this size on blocks are oversize; UINT64_MAX: none is. */
    uint64_t num_oom_rejections; /**< Allocations refused without a call of the driver. */
} tcuda_memory_statistics;

/** The mapped memory of a stream in a size class. */
typedef struct tcuda_segment_size {
    struct CUstream_st *cu_stream; /**< Native handle; NULL: the default stream. */
    uint64_t bytes;                /**< Bytes that are mapped for it, in all pools. */
    int32_t is_small;              /**< 1: of blocks up to 64 KiB; 0: of larger ones. */
} tcuda_segment_size;

/** A process on a GPU. */
typedef struct tcuda_process {
    /** Its process id, in the driver's namespace: inside a container the ids are different. */
    uint64_t pid;
    /** Its memory on the GPU in bytes; UINT64_MAX: the driver does not report it. */
    uint64_t used_bytes;
} tcuda_process;

/**
 * All statistics of a device at one moment; zeros before initialisation. With the backend
 * "cudaMallocAsync" the driver only counts bytes; docs/configuration.md lists which.
 * (torch.cuda.memory_stats)
 *
 * @param device         ordinal, or TCUDA_CURRENT_DEVICE
 * @param[in,out] stats  start from TCUDA_INIT(tcuda_memory_statistics)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_stats(int32_t device, tcuda_memory_statistics *stats);

/**
 * The larger of what the driver has free and of the largest free block of the cache, of any stream
 * and pool. A request of this size may fail all the same: the block may be another stream's.
 * (+: c10's cacheInfo)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] bytes  0 where there is neither
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_largest_free(int32_t device, size_t *bytes);

/**
 * The mapped memory of each stream and size class of a device. Segments of cuMemAlloc, which
 * expandable_segments:False and pools with an allocator have, do not count.
 * (+: c10's getExpandableSegmentSizes)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] sizes  the first `capacity` of them; may be NULL when `capacity` is 0
 * @param capacity    length of the list
 * @param[out] count  number of streams and classes with mapped memory
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_segment_sizes(int32_t device, tcuda_segment_size *sizes, size_t capacity,
    size_t *count);

/**
 * One statistic by torch's key, "allocated_bytes.all.peak" or "num_ooms". A private pool that was
 * used on the device has "reserved_bytes_by_private_pools.0_1.all.current", with the numbers of
 * tcuda_mem_pool_id, until the pool is destroyed and its memory went back to the driver.
 * "allocated", from torch's documents, is the same as "allocation". TCUDA_STATUS_INVALID_ARGUMENT
 * for other keys; the message names the nearest. (torch.cuda.memory_stats)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param key         one of those that tcuda_memory_stat_keys lists
 * @param[out] value  bytes or a number, as the key says
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_stat(int32_t device, const char *key, uint64_t *value);

/**
 * The keys of tcuda_memory_stat, sorted like the dictionary of torch.cuda.memory_stats, separated
 * by newlines. Private pools have keys of their own, in the order in which they were first used on
 * the device. (the keys of torch.cuda.memory_stats)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] buf     may be NULL if len is 0
 * @param len          room in buf, in bytes
 * @param[out] needed  length without NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_stat_keys(int32_t device, char *buf, size_t len, size_t *needed);

/**
 * All statistics as JSON, nested as in torch.cuda.memory_stats_as_nested_dict; below
 * "reserved_bytes_by_private_pools" one entry for each private pool: "0_1" is the pool 0, 1.
 * (torch.cuda.memory_stats_as_nested_dict)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_stats_json(int32_t device, char *buf, size_t len, size_t *needed);

/**
 * allocated_bytes.all.current: bytes of allocated blocks. (torch.cuda.memory_allocated)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] bytes  0 before initialisation
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_allocated(int32_t device, size_t *bytes);

/**
 * allocated_bytes.all.peak. (torch.cuda.max_memory_allocated)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] bytes  0 before initialisation
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_max_allocated(int32_t device, size_t *bytes);

/**
 * reserved_bytes.all.current: bytes from the driver.
 * (torch.cuda.memory_reserved, torch.cuda.memory_cached)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] bytes  0 before initialisation
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_reserved(int32_t device, size_t *bytes);

/**
 * reserved_bytes.all.peak. (torch.cuda.max_memory_reserved, torch.cuda.max_memory_cached)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] bytes  0 before initialisation
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_max_reserved(int32_t device, size_t *bytes);

/**
 * Every peak becomes its current value. (torch.cuda.reset_peak_memory_stats,
 * torch.cuda.reset_max_memory_allocated, torch.cuda.reset_max_memory_cached)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_reset_peak(int32_t device);

/**
 * Every total (allocated, freed, num_...) becomes 0. (torch.cuda.reset_accumulated_memory_stats)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_reset_accumulated(int32_t device);

/**
 * Opens a scope of statistics of a device: peaks and totals of all threads' calls from now on.
 * Scopes nest on each thread, and each is closed by the thread that opened it. Scopes and the
 * device's own statistics are independent: tcuda_memory_reset_peak and
 * tcuda_memory_reset_accumulated do not change open scopes. When a thread ends its scopes are
 * closed, and tcuda_shutdown closes all. (+)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_stats_push(int32_t device);

/**
 * Closes this thread's newest scope of a device and returns its statistics: each peak is the
 * highest value since the scope was opened, each total and num_... the sum since then, each
 * current value the present one. Outer scopes include it. TCUDA_STATUS_INVALID_STATE if the thread
 * has none. (+)
 *
 * @param device         ordinal, or TCUDA_CURRENT_DEVICE
 * @param[in,out] stats  start from TCUDA_INIT(tcuda_memory_statistics); may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_stats_pop(int32_t device, tcuda_memory_statistics *stats);

/**
 * All statistics as a table to read. (torch.cuda.memory_summary)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param abbreviated  1: without the rows of the pools; 0: with them
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_summary(int32_t device, int32_t abbreviated, char *buf, size_t len,
    size_t *needed);

/**
 * The processes that compute on a GPU, and the memory of each, in torch's format: `GPU:` and
 * NVML's number of it, then a line for each. From NVML, which is loaded at the first use, from the
 * path in TCUDA_NVML_PATH if that is set; TCUDA_STATUS_NO_LIBRARY where there is none. The
 * simulated machine reports only this process. (torch.cuda.list_gpu_processes)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_processes(int32_t device, char *buf, size_t len, size_t *needed);

/**
 * tcuda_memory_processes as a list, in NVML's order. (torch.cuda.list_gpu_processes)
 *
 * @param device          ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] processes  the first `capacity` of them; may be NULL when `capacity` is 0
 * @param capacity        length of the list
 * @param[out] count      number of processes
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_process_list(int32_t device, tcuda_process *processes, size_t capacity,
    size_t *count);

/* ---- Limits and settings ---- */

/**
 * Called before an allocation fails: it may free memory, of any device and stream, and returns
 * nonzero if it did: then the allocation is tried once more. Runs on the thread whose allocation
 * fails, without a lock, perhaps on several threads at once. It must not allocate device memory:
 * that gives TCUDA_STATUS_INVALID_STATE.
 *
 * bytes is the size of the request to the driver, limit_bytes what the cache may reserve (the
 * device's memory where no fraction is set), free_bytes what the driver reports as free.
 */
typedef int32_t (*tcuda_out_of_memory_fn)(void *user_data, int32_t device, size_t bytes,
    size_t limit_bytes, size_t free_bytes);

/**
 * Called when an allocation is refused because it exceeds the memory fraction, with
 * throw_on_cudamalloc_oom:True, without a call of the driver. Runs on the thread whose allocation
 * fails, without a lock, perhaps on several threads at once. It must not allocate device memory:
 * that gives TCUDA_STATUS_INVALID_STATE.
 *
 * bytes is the size of the request to the driver, allocated_bytes those of allocated blocks,
 * total_bytes the device's memory.
 */
typedef void (*tcuda_rejection_fn)(void *user_data, int32_t device, size_t bytes,
    size_t allocated_bytes, size_t total_bytes);

/**
 * Share of a device's memory that the cache may reserve; 1 where none is set.
 * (torch.cuda.get_per_process_memory_fraction)
 *
 * @param device         ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] fraction  as it was set
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_fraction_get(int32_t device, double *fraction);

/**
 * Limits what the cache may reserve of a device to a share of its memory, rounded down to a byte.
 * The limit counts what tcuda_memory_reserved returns, including allocated blocks; not contexts,
 * kernels, or allocations of other libraries. Memory that is reserved beyond a lower limit stays
 * until it is given back, and the next allocation that needs more gives unused memory back first.
 * For a limit in bytes, divide it by the total that tcuda_memory_info gives.
 * (torch.cuda.set_per_process_memory_fraction)
 *
 * @param device    ordinal, or TCUDA_CURRENT_DEVICE; it comes first, where torch has the fraction
 * @param fraction  0 to 1; 1: no limit
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_fraction_set(int32_t device, double fraction);
/* Refuses a double for an integer: arguments in the wrong order do not compile. A host that defines
 * or wraps the function writes its name in parentheses: (tcuda_memory_fraction_set)(...). */
#define tcuda_memory_fraction_set(device, fraction) \
    tcuda_memory_fraction_set((device) | 0, fraction)

/**
 * Registers a function that is called before an allocation fails for want of device memory, after
 * all unused memory was given back. All such functions are called, the newest first; if one of
 * them returns that it freed memory, the allocation is tried once more. tcuda_shutdown removes all
 * of them. (+)
 *
 * @param callback       not NULL
 * @param user_data      the caller's, passed to the callback; may be NULL
 * @param destroy        called with user_data once no thread is in the callback; may be NULL
 * @param[out] observer  the caller's, to be destroyed; may be NULL: registered until
 * tcuda_shutdown
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_on_out_of_memory(tcuda_out_of_memory_fn callback, void *user_data,
    tcuda_destroy_fn destroy, tcuda_observer **observer);

/**
 * Registers a function that is called when an allocation is refused by the memory fraction, with
 * throw_on_cudamalloc_oom:True. Functions of tcuda_memory_on_out_of_memory are called before, and
 * may free memory; this one cannot change the outcome. All such functions are called, the newest
 * first. tcuda_shutdown removes all of them. (+: c10's attachOomRejectionObserver)
 *
 * @param callback       not NULL
 * @param user_data      the caller's, passed to the callback; may be NULL
 * @param destroy        called with user_data once no thread is in the callback; may be NULL
 * @param[out] observer  the caller's, to be destroyed; may be NULL: registered until
 * tcuda_shutdown
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_on_rejection(tcuda_rejection_fn callback, void *user_data,
    tcuda_destroy_fn destroy, tcuda_observer **observer);

/**
 * The allocator's present settings, in the grammar of TCUDA_ALLOC_CONF: passing the text to
 * tcuda_allocator_config_set changes nothing. Before initialisation, the settings that
 * initialisation would use. (+)
 *
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocator_config_get(char *buf, size_t len, size_t *needed);

/**
 * Changes the allocator's settings, also before initialisation. The text is what torch reads from
 * PYTORCH_CUDA_ALLOC_CONF, "max_split_size_mb:256,roundup_power2_divisions:[256:2,>:4]";
 * docs/configuration.md lists the keys and what each does here. As in torch, max_split_size_mb,
 * roundup_power2_divisions and garbage_collection_threshold go back to their defaults where the
 * text lacks them, and other keys keep their values. An invalid text changes nothing.
 *
 * Without this call the environment's TCUDA_ALLOC_CONF counts, else PYTORCH_ALLOC_CONF, else
 * PYTORCH_CUDA_ALLOC_CONF, as read at initialisation; if that is invalid, the call that
 * initialises gives TCUDA_STATUS_INVALID_ARGUMENT. tcuda_shutdown forgets what was set here.
 *
 * The key "backend" can change only before the first allocation, else TCUDA_STATUS_INVALID_STATE.
 * (torch.cuda.memory._set_allocator_settings)
 *
 * @param config  the text; not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocator_config_set(const char *config);

/**
 * Where device memory comes from: "native", this library's cache; "cudaMallocAsync", the driver's
 * pools, by the key "backend" of tcuda_allocator_config_set; or "pluggable", another library, by
 * tcuda_allocator_set_current. (torch.cuda.get_allocator_backend)
 */
TCUDA_API
const char *tcuda_allocator_backend(void);

/**
 * Turns the cache of the native backend on or off, for allocations from now on. Without it each is
 * a cuMemAlloc of exactly the requested size, and each tcuda_free of such a block a cuMemFree,
 * which waits for the device. Earlier blocks are freed as they were allocated. With
 * TCUDA_NO_MEMORY_CACHING or PYTORCH_NO_CUDA_MEMORY_CACHING set to exactly 1 at initialisation it
 * is off, whatever is set here. tcuda_shutdown turns it on again.
 * (torch.cuda.caching_allocator_enable; torch.cuda.caching_allocator_disabled, with
 * tcuda_memory_caching_is_enabled)
 *
 * @param enabled  1 or 0; other backends ignore it
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_caching_enable(int32_t enabled);

/**
 * Does the native backend cache freed memory? (+)
 *
 * @param[out] enabled  whether it does
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_caching_is_enabled(bool *enabled);

/* ---- History ---- */

#define TCUDA_FRAMES_ALL 0   /**< Frames for every event, and for blocks. */
#define TCUDA_FRAMES_ALLOC 1 /**< For allocations, of blocks and segments, and for blocks. */
#define TCUDA_FRAMES_STATE 2 /**< For blocks only. */
#define TCUDA_FRAMES_NONE 3  /**< No frames. */

#define TCUDA_RECORD_CLEAR 1 /**< Forget the events so far, with TCUDA_HISTORY_OFF as well. */
#define TCUDA_RECORD_HOST 2  /**< Pinned memory too: blocks in their rounded sizes, and segments. */
#define TCUDA_RECORD_NO_DEVICE 4     /**< Not the memory of devices. */
#define TCUDA_RECORD_NATIVE_FRAMES 8 /**< Add the C frames below the host's. */

/** What is recorded: TCUDA_HISTORY_... */
typedef int32_t tcuda_history_mode;
#define TCUDA_HISTORY_OFF 0   /**< Nothing; what was recorded stays. */
#define TCUDA_HISTORY_STATE 1 /**< Only the frames of live memory. */
#define TCUDA_HISTORY_ALL 2   /**< Every event. */

/** A frame of a stack. */
typedef struct tcuda_frame {
    const char *name;     /**< Function. */
    const char *filename; /**< File; may be NULL. */
    int32_t line;         /**< Line in it. */
} tcuda_frame;

/**
 * Writes the caller's stack, innermost frame first, and returns its depth; frames beyond
 * `capacity` are left out. The texts are copied before it is called again. It is called on the
 * thread that allocates or frees, before the operation, with no lock held, and must not allocate
 * from tcuda.
 */
typedef size_t (*tcuda_frames_fn)(void *user_data, tcuda_frame *frames, size_t capacity);

/**
 * How an object of the host that stands for a stack begins, for example one that a language
 * runtime makes and prints later. It counts its own references, on any thread. tcuda may hold
 * locks when it calls these functions: they must not call tcuda, which would be
 * TCUDA_STATUS_INVALID_STATE, nor wait for a thread that is in a call of tcuda.
 * (c10::GatheredContext)
 */
typedef struct tcuda_frame_context {
    void (*retain)(void *context);  /**< Adds a reference to the object; may be NULL. */
    void (*release)(void *context); /**< Drops a reference to it; may be NULL. */
} tcuda_frame_context;

/**
 * Returns an object that stands for the caller's stack, with a reference for tcuda; NULL: none.
 * tcuda keeps it at least as long as an event, a live block or a snapshot has it: others are
 * dropped together when they take much memory, and by TCUDA_RECORD_CLEAR and TCUDA_HISTORY_OFF. It
 * is called when tcuda_frames_fn is, and under the same conditions.
 */
typedef tcuda_frame_context *(*tcuda_frame_context_fn)(void *user_data);

/** What to record; zeros are defaults. */
typedef struct tcuda_history_options {
    size_t struct_size; /**< From TCUDA_INIT. */
    /** Number of newest events that are kept for each device; 0: 1048576; at most 268435456. */
    size_t max_entries;
    int32_t frames_for; /**< TCUDA_FRAMES_... */
    uint32_t flags;     /**< TCUDA_RECORD_... */
    /** Events that are left out, by torch's names, "snapshot,segment_map"; may be NULL. */
    const char *skip_actions;
    tcuda_frames_fn frames;   /**< Returns the host's frames; may be NULL. */
    void *user_data;          /**< Passed to frames, context and destroy. */
    tcuda_destroy_fn destroy; /**< May be NULL. */
    /**
     * Returns an object that stands for the stack, besides its frames or in their place; may be
     * NULL. Such objects are in no text of a snapshot: tcuda_memory_snapshot_event and
     * tcuda_memory_snapshot_block give them back.
     */
    tcuda_frame_context_fn context;
} tcuda_history_options;

/**
 * Starts, changes or stops recording what the allocators do, for all devices, present and future;
 * each call sets all options. While it is off, an operation costs a load and a branch more.
 * Snapshots taken with_history contain the newest events. An event for which there is no host
 * memory is left out; no allocation fails for it. A stack is stored while an event or a live block
 * refers to it: host memory is bounded by max_entries events and the live blocks. tcuda_shutdown
 * stops recording and forgets all of it. (torch.cuda.memory._record_memory_history)
 *
 * @param mode     TCUDA_HISTORY_OFF: stop; _STATE: frames of live memory; _ALL: every event
 * @param options  may be NULL: all zero
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_record_history(tcuda_history_mode mode,
    const tcuda_history_options *options);

/**
 * The frames with which a live block was allocated, innermost first, as JSON (ASCII): a list of
 * {"name", "filename", "line"}, empty if none were recorded. TCUDA_STATUS_INVALID_POINTER for what
 * is no live block. As a snapshot it copies all recorded stacks: not for each allocation.
 * (torch.cuda.memory._allocation_traceback)
 *
 * @param ptr          what tcuda_malloc gave; not NULL
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_frames_of(const void *ptr, char *buf, size_t len, size_t *needed);

/**
 * The object that stands for the stack with which a live block was allocated.
 * TCUDA_STATUS_INVALID_POINTER for what is no live block. Copies nothing: it may be called for
 * each allocation. (+: c10's getContextForPointer)
 *
 * @param ptr           what tcuda_malloc gave; not NULL
 * @param[out] context  with a reference that is the caller's; NULL: none was recorded
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_context_of(const void *ptr, tcuda_frame_context **context);

/**
 * Sets the text that the calling thread's events carry in snapshots, under "user_metadata", for
 * example the step of a program; device memory only. Without a recording it has no effect. Each
 * thread has a text of its own, which it keeps until it ends. As in PyTorch, blocks of a snapshot
 * do not show it. (torch.cuda.memory._set_memory_metadata)
 *
 * @param text  copied; UTF-8; may be NULL: as "", no text
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_metadata_set(const char *text);

/**
 * The text that the calling thread set, or "".
 * (torch.cuda.memory._get_memory_metadata)
 *
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_metadata_get(char *buf, size_t len, size_t *needed);

/**
 * Begins a context of compilation of the calling thread: its events carry the text in snapshots,
 * under "compile_context", until the matching tcuda_memory_compile_context_pop. Contexts nest: the
 * innermost counts. Each thread has contexts of its own. (+: c10's pushCompileContext)
 *
 * @param text  copied; UTF-8; not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_compile_context_push(const char *text);

/**
 * Ends the calling thread's innermost context of compilation; TCUDA_STATUS_INVALID_STATE where it
 * has none. (+: c10's popCompileContext)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_compile_context_pop(void);

/**
 * Adds an event "annotate" to the recording, which carries a text about a live block, with the
 * block's address and requested size. The texts of a block accumulate, and that of
 * tcuda_memory_metadata_set stays as it is. Without a recording it has no effect.
 * TCUDA_STATUS_INVALID_POINTER for what is no live block.
 * (torch.cuda.memory._annotate_tensor)
 *
 * @param ptr   what tcuda_malloc gave; not NULL
 * @param text  copied; UTF-8; not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_annotate(const void *ptr, const char *text);

/* ---- Snapshots ---- */

/** Segments and blocks of all devices at one moment. */
typedef struct tcuda_memory_snapshot tcuda_memory_snapshot;

/** A contiguous range of memory from the driver, which serves one stream and size class. */
typedef struct tcuda_segment_info {
    size_t struct_size;       /**< From TCUDA_INIT. */
    void *ptr;                /**< First byte. */
    uint64_t total_bytes;     /**< Length, the sum of its blocks. */
    uint64_t allocated_bytes; /**< Bytes of allocated blocks. */
    /** Bytes of allocated blocks, and of freed ones that wait for streams. */
    uint64_t active_bytes;
    uint64_t requested_bytes; /**< Requested bytes of active blocks. */
    /** Index of its first block; the others follow, in the order of addresses. */
    size_t first_block;
    size_t block_count;            /**< Number of its blocks. */
    struct CUstream_st *cu_stream; /**< Native handle of its stream; NULL: the default one. */
    int64_t stream_id;             /**< As tcuda_stream_id returns it. */
    int32_t device;                /**< Ordinal. */
    /**
     * 1: of blocks up to 64 KiB; 0: of larger ones. Blocks up to 1 MiB count as small in
     * statistics all the same. With expandable_segments:False, 1: of blocks up to 1 MiB, as in
     * torch.
     */
    int32_t is_small;
    /** The first number of tcuda_mem_pool_id of its private pool; both are 0 if it is in none. */
    uint64_t pool_id0;
    uint64_t pool_id1; /**< The second number of tcuda_mem_pool_id. */
} tcuda_segment_info;

/** State of a block, by torch's names: TCUDA_BLOCK_... */
typedef int32_t tcuda_block_state;
#define TCUDA_BLOCK_INACTIVE 0         /**< "inactive": cached, not allocated. */
#define TCUDA_BLOCK_ACTIVE_ALLOCATED 1 /**< "active_allocated": held by the host. */
/** "active_pending_free": freed, but recorded streams may still use it (tcuda_record_stream). */
#define TCUDA_BLOCK_ACTIVE_PENDING_FREE 2

/** A part of a segment. */
typedef struct tcuda_block_info {
    size_t struct_size;       /**< From TCUDA_INIT. */
    void *ptr;                /**< First byte. */
    uint64_t bytes;           /**< Length. */
    uint64_t requested_bytes; /**< Requested bytes; 0 when inactive. */
    int32_t device;           /**< Ordinal. */
    tcuda_block_state state;  /**< TCUDA_BLOCK_... */
    /**
     * What tcuda_frame_context_fn gave for the allocation, valid until the snapshot is destroyed;
     * NULL without history.
     */
    tcuda_frame_context *context;
} tcuda_block_info;

/**
 * The segments and blocks of all devices now, empty before initialisation. Each device is listed
 * at one moment, one device after the other; a call that another thread makes meanwhile is shown
 * either not at all or complete. Does not wait for the device. (torch.cuda.memory_snapshot)
 *
 * @param with_history   1: with the recorded history; 0: only the present state
 * @param[out] snapshot  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_create(int32_t with_history, tcuda_memory_snapshot **snapshot);

/**
 * Destroys a snapshot, with its references to contexts. (+)
 *
 * @param snapshot  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_memory_snapshot_destroy(tcuda_memory_snapshot *snapshot);

/**
 * Sizes of a snapshot: its segments are in the order of devices and addresses, and so are the
 * blocks of all of them. (torch.cuda.memory_snapshot)
 *
 * @param snapshot            from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param[out] segment_count  number of segments
 * @param[out] block_count    number of blocks of all segments
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_counts(tcuda_memory_snapshot *snapshot, size_t *segment_count,
    size_t *block_count);

/**
 * A segment of a snapshot. (torch.cuda.memory_snapshot)
 *
 * @param snapshot         from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param index            below the number of segments
 * @param[in,out] segment  start from TCUDA_INIT(tcuda_segment_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_segment(tcuda_memory_snapshot *snapshot, size_t index,
    tcuda_segment_info *segment);

/**
 * A block of a snapshot. (torch.cuda.memory_snapshot)
 *
 * @param snapshot       from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param index          below the number of blocks; a segment has the index of its first
 * @param[in,out] block  start from TCUDA_INIT(tcuda_block_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_block(tcuda_memory_snapshot *snapshot, size_t index,
    tcuda_block_info *block);

/**
 * A snapshot as a pickle, of the dictionary that torch.cuda.memory._snapshot gives: the memory_viz
 * page of PyTorch and torch/cuda/_memory_viz.py open it. (torch.cuda.memory._snapshot)
 *
 * @param snapshot     from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param[out] buf     bytes, without a NUL; not usable where they are cut
 * @param len          room in buf, in bytes
 * @param[out] needed  length; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_pickle(tcuda_memory_snapshot *snapshot, void *buf, size_t len,
    size_t *needed);

/**
 * The same dictionary as JSON, in ASCII. The frames are repeated for each event, so that a long
 * history of deep stacks is large. (+)
 *
 * @param snapshot     from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_json(tcuda_memory_snapshot *snapshot, char *buf, size_t len,
    size_t *needed);

/**
 * A snapshot as one HTML page that needs no other file and no network: allocated memory over time
 * by block, and a map of the segments. (+)
 *
 * @param snapshot     from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_html(tcuda_memory_snapshot *snapshot, char *buf, size_t len,
    size_t *needed);

/**
 * Writes a snapshot to a file: first to a temporary file in the same directory, which is then
 * renamed, so that the path never has half of a snapshot. TCUDA_STATUS_FILE_ERROR where it cannot
 * be written. (torch.cuda.memory._dump_snapshot)
 *
 * @param snapshot  from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param path      ends in .pickle, .json or .html, which is the format
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_save(tcuda_memory_snapshot *snapshot, const char *path);

/* ---- Events ---- */

/** What happened, by torch's names: TCUDA_ACTION_... */
typedef int32_t tcuda_memory_action;

/** An event of an allocator. */
typedef struct tcuda_memory_event {
    size_t struct_size; /**< From TCUDA_INIT. */
    void *ptr; /**< First byte of the block or segment; NULL for TCUDA_ACTION_SNAPSHOT and _OOM. */
    /**
     * Length: of a block as it was requested, of a segment as it is; for TCUDA_ACTION_SNAPSHOT the
     * active bytes.
     */
    uint64_t bytes;
    uint64_t free_bytes; /**< For TCUDA_ACTION_OOM what the driver reported as free, else 0. */
    struct CUstream_st *cu_stream; /**< Native handle of the stream; NULL: the default one. */
    /** The first number of tcuda_mem_pool_id of the private pool; both are 0 if it is in none. */
    uint64_t pool_id0;
    uint64_t pool_id1; /**< The second number of tcuda_mem_pool_id. */
    int64_t time_us;   /**< Microseconds since 1970. */
    /** What tcuda_frame_context_fn gave for the event; NULL: nothing, or nothing is recorded. */
    tcuda_frame_context *context;
    /** Text of tcuda_memory_metadata_set or tcuda_memory_annotate, or ""; "" for pinned memory. */
    const char *metadata;
    /** Text of tcuda_memory_compile_context_push, or ""; "" for pinned memory. */
    const char *compile_context;
    int32_t device;             /**< Ordinal; TCUDA_CPU_DEVICE for pinned memory. */
    tcuda_memory_action action; /**< TCUDA_ACTION_... */
} tcuda_memory_event;

/**
 * Called for an event. The event, its texts and its context are valid until it returns; it may
 * retain the context.
 */
typedef void (*tcuda_memory_event_fn)(void *user_data, const tcuda_memory_event *event);

#define TCUDA_ACTION_ALLOC 0          /**< "alloc": a block was allocated. */
#define TCUDA_ACTION_FREE_REQUESTED 1 /**< "free_requested": the host freed a block. */
#define TCUDA_ACTION_FREE_COMPLETED 2 /**< "free_completed": the block can be allocated again. */
/** "segment_alloc": memory came from cuMemAlloc or another library's allocator. */
#define TCUDA_ACTION_SEGMENT_ALLOC 3
#define TCUDA_ACTION_SEGMENT_FREE 4  /**< "segment_free": such memory goes back. */
#define TCUDA_ACTION_SEGMENT_MAP 5   /**< "segment_map": memory was mapped. */
#define TCUDA_ACTION_SEGMENT_UNMAP 6 /**< "segment_unmap": memory is unmapped. */
/** "snapshot": a snapshot was taken; later ones have this event. */
#define TCUDA_ACTION_SNAPSHOT 7
#define TCUDA_ACTION_OOM 8      /**< "oom": an allocation failed for want of memory. */
#define TCUDA_ACTION_ANNOTATE 9 /**< "annotate": tcuda_memory_annotate. */

/**
 * Registers a function that is called for each event of the allocators: of the blocks and segments
 * of all devices, and of pinned memory, whether tcuda_memory_record_history is on or not.
 * tcuda_shutdown removes all such functions.
 *
 * It is called on the thread of the event, on one thread at a time, with locks of tcuda held: the
 * events of an address come in their order, and new memory is not yet the host's. Memory that goes
 * back to the driver is still there at SEGMENT_FREE, and unmapped already at SEGMENT_UNMAP. The
 * callback must not call tcuda, which would be TCUDA_STATUS_INVALID_STATE, nor wait for a thread
 * that is in a call of tcuda. While one is registered, allocations and frees take the slow path.
 * (+: c10's attachAllocatorTraceTracker)
 *
 * @param callback       not NULL
 * @param user_data      the caller's, passed to the callback; may be NULL
 * @param destroy        called with user_data once no thread can be in the callback; may be NULL
 * @param[out] observer  the caller's, to be destroyed; may be NULL: registered until
 * tcuda_shutdown
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_on_event(tcuda_memory_event_fn callback, void *user_data,
    tcuda_destroy_fn destroy, tcuda_observer **observer);

/**
 * Number of events of a device in a snapshot, or of pinned memory; 0 without history.
 * (torch.cuda.memory._snapshot)
 *
 * @param snapshot    from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param device      ordinal, or TCUDA_CPU_DEVICE; others, also TCUDA_CURRENT_DEVICE, are
 *                    TCUDA_STATUS_INVALID_DEVICE
 * @param[out] count  events that tcuda_memory_snapshot_event gives
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_event_count(tcuda_memory_snapshot *snapshot, int32_t device,
    size_t *count);

/**
 * An event of a snapshot, whose texts and context are valid until the snapshot is destroyed.
 * (torch.cuda.memory._snapshot)
 *
 * @param snapshot       from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
 * @param device         as for tcuda_memory_snapshot_event_count
 * @param index          below the number of events; 0: the oldest
 * @param[in,out] event  start from TCUDA_INIT(tcuda_memory_event)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_snapshot_event(tcuda_memory_snapshot *snapshot, int32_t device,
    size_t index, tcuda_memory_event *event);

/* ---- Allocators of other libraries ---- */

/** An allocator of another library. */
typedef struct tcuda_pluggable_allocator tcuda_pluggable_allocator;

/**
 * Returns bytes of memory of a device, for work queued on a stream (NULL: the default one); NULL:
 * it has none. Called on any thread, perhaps on several at once, with the device's context current
 * and no lock of tcuda held. May call tcuda; tcuda_malloc calls back here where the allocator is
 * the current one. Must not throw: a C++ exception that leaves it ends the process.
 */
typedef void *(*tcuda_torch_malloc_fn)(ptrdiff_t bytes, int32_t device,
    struct CUstream_st *cu_stream);

/** Takes memory back: called with what tcuda_torch_malloc_fn returned, and with its arguments. */
typedef void (*tcuda_torch_free_fn)(void *ptr, ptrdiff_t bytes, int32_t device,
    struct CUstream_st *cu_stream);

/**
 * Optional functions of an allocator, those that PyTorch's set_..._fn set; each may be NULL, and
 * is then not called. Functions that route to pools are absent: they take a C++ std::function.
 */
typedef struct tcuda_pluggable_hooks {
    size_t struct_size; /**< From TCUDA_INIT. */
    /** Called before the first allocation, with the number of devices. */
    void (*init)(int32_t device_count);
    void (*reset)(void); /**< Called by tcuda_memory_empty_cache. */
    /** Called by tcuda_memory_fraction_set. */
    void (*memory_fraction)(double fraction, int32_t device);
    /** Returns the driver's allocation that holds a block, and its length in bytes. */
    void *(*base_alloc)(void *ptr, size_t *bytes);
    /** Called by tcuda_record_stream. */
    void (*record_stream)(void *ptr, struct CUstream_st *cu_stream);
} tcuda_pluggable_hooks;

/**
 * Opens a library made for torch's CUDAPluggableAllocator, as dlopen does with RTLD_NOW and
 * RTLD_LOCAL. It is closed when the allocator was destroyed, and all its memory has been returned
 * to it. (torch.cuda.CUDAPluggableAllocator)
 *
 * @param path            as dlopen takes it; TCUDA_STATUS_NO_LIBRARY where it cannot be opened
 * @param alloc_symbol    a function of the form of tcuda_torch_malloc_fn
 * @param free_symbol     a function of the form of tcuda_torch_free_fn
 * @param[out] allocator  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_pluggable_allocator_load(const char *path, const char *alloc_symbol,
    const char *free_symbol, tcuda_pluggable_allocator **allocator);

/**
 * tcuda_pluggable_allocator_load with two functions of this process.
 * (torch.cuda.CUDAPluggableAllocator)
 *
 * @param alloc_fn        not NULL
 * @param free_fn         not NULL
 * @param[out] allocator  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_pluggable_allocator_create(tcuda_torch_malloc_fn alloc_fn,
    tcuda_torch_free_fn free_fn, tcuda_pluggable_allocator **allocator);

/**
 * Destroys an allocator. Blocks and pools made with it keep it, and are freed by it.
 * (the end of a torch.cuda.CUDAPluggableAllocator)
 *
 * @param allocator  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_pluggable_allocator_destroy(tcuda_pluggable_allocator *allocator);

/**
 * Sets the optional functions; functions that are NULL now are removed.
 * (the set_..._fn of torch.cuda.CUDAPluggableAllocator)
 *
 * @param allocator  not in use yet, or TCUDA_STATUS_INVALID_STATE
 * @param hooks      start from TCUDA_INIT(tcuda_pluggable_hooks)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_pluggable_allocator_set_hooks(tcuda_pluggable_allocator *allocator,
    const tcuda_pluggable_hooks *hooks);

/**
 * From now on all device memory comes from an allocator of another library: each tcuda_malloc is a
 * call of its allocating function, and each tcuda_free a call of its freeing function, with the
 * same arguments. Nothing is rounded or cached in between. Statistics, snapshots, history, the
 * memory fraction and out-of-memory observers still work; private pools are
 * TCUDA_STATUS_NOT_SUPPORTED. If the allocator returns NULL it is called once more after
 * hooks.reset, if that is set, and after the observers; then the failure is
 * TCUDA_STATUS_OUT_OF_MEMORY. tcuda_shutdown gives its memory back to it and returns to the
 * library's own allocator. Initialises the library. (torch.cuda.memory.change_current_allocator)
 *
 * @param allocator  may be NULL: the library's own. After the first allocation it is too late:
 *                   TCUDA_STATUS_INVALID_STATE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_allocator_set_current(tcuda_pluggable_allocator *allocator);

/* ---- Private pools ---- */

/**
 * Flag of tcuda_mem_pool_create and _set_flags: allocations outside of the pool may use its free
 * blocks of their stream before they fail.
 */
#define TCUDA_MEM_POOL_USE_ON_OOM 1
/**
 * Flag of tcuda_mem_pool_create and _set_flags: each block is a whole segment of PyTorch's sizes
 * (2 MiB, 20 MiB, or from 10 MiB on the request rounded up to 2 MiB), from cuMemAlloc or the
 * pool's allocator.
 */
#define TCUDA_MEM_POOL_NO_SPLIT 2

typedef struct tcuda_mem_pool tcuda_mem_pool; /**< A private pool, for any device. */

/**
 * Returns nonzero if a stream is in a set of streams. Called on any thread that allocates, perhaps
 * on several at once. It must not call tcuda, which would be TCUDA_STATUS_INVALID_STATE, nor wait
 * for a thread that is in a call of tcuda. It may query the driver, for example for the capture of
 * the stream.
 */
typedef int32_t (*tcuda_stream_filter_fn)(void *user_data, struct CUstream_st *cu_stream);

/** A live block of a private pool. */
typedef struct tcuda_pool_block {
    void *ptr;              /**< What tcuda_malloc gave. */
    size_t requested_bytes; /**< Bytes that were requested. */
    size_t bytes;           /**< Bytes that it has. */
    int64_t stream_id;      /**< torch's id of the stream for which it was allocated. */
} tcuda_pool_block;

/**
 * A private pool: memory that only those allocations get that tcuda_mem_pool_begin routes to it.
 * tcuda_memory_empty_cache does not touch it while the pool exists. Before an allocation fails for
 * want of memory, unused memory of pools goes back to the driver, except that of graphs' pools,
 * which replays write. (torch.cuda.MemPool)
 *
 * @param allocator   source of its segments, which it divides into blocks; the pool and its
 *                    segments keep it; may be NULL: the driver
 * @param flags       TCUDA_MEM_POOL_... combined, or 0
 * @param[out] pool   the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_create(tcuda_pluggable_allocator *allocator, uint32_t flags,
    tcuda_mem_pool **pool);

/**
 * A pool by the pair of numbers that another library has for it, for example PyTorch's
 * MempoolId_t: the pool that has these numbers, or a new one. Each call gives a handle of its own.
 * When all of them are destroyed, and no route or graph refers to the pool, it ends: its numbers
 * denote a new pool then, which may get the memory that the earlier one left. Snapshots and keys
 * of statistics show these numbers. Pools that tcuda numbers itself have larger ones. (+: c10's
 * createOrIncrefPool)
 *
 * @param id0        of a pool of graphs, whose unused memory graphs may write; else 0
 * @param id1        of another pool; else 0. One of the two numbers is 0, the other 1 to 2^30 - 1
 * @param allocator  source of the segments of a new pool; may be NULL: the driver. It is
 *                   TCUDA_STATUS_INVALID_STATE to give one for a pool that exists
 * @param[out] pool  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_from_id(uint64_t id0, uint64_t id1,
    tcuda_pluggable_allocator *allocator, tcuda_mem_pool **pool);

/**
 * Sets the flags of a pool for the allocations that follow; blocks, and the rest of segments that
 * were divided before, stay as they are. (+: c10's setUseOnOOM, setNoSplit)
 *
 * @param pool   not NULL
 * @param flags  TCUDA_MEM_POOL_... combined, or 0. TCUDA_MEM_POOL_NO_SPLIT cannot be taken back:
 *               TCUDA_STATUS_INVALID_STATE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_set_flags(tcuda_mem_pool *pool, uint32_t flags);

/**
 * Destroys a pool. Allocated blocks stay valid, and threads that are routed to it stay so until
 * their tcuda_mem_pool_end, or their end. Routes of streams that began with this handle end.
 * Unused memory goes back to the driver, at once or, where something was in use, with the next
 * tcuda_memory_empty_cache; waits for work that may still use it. The launches of graphs that the
 * host captures by the driver's functions are not known. So if such a graph used the pool, or its
 * id is one of a capture, its memory goes back with the next tcuda_memory_empty_cache, or when
 * memory is short: after all work of the device, and not while a stream is captured. (the end of a
 * torch.cuda.MemPool)
 *
 * @param pool  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_mem_pool_destroy(tcuda_mem_pool *pool);

/**
 * From now on this thread's allocations on a device come from the pool, on any stream, until the
 * matching tcuda_mem_pool_end. Begins nest: the last one counts. (torch.cuda.use_mem_pool)
 *
 * @param pool    not NULL
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_begin(tcuda_mem_pool *pool, int32_t device);

/**
 * Ends this thread's last tcuda_mem_pool_begin on that device, also if the pool was destroyed
 * since. (the end of torch.cuda.use_mem_pool)
 *
 * @param pool    a handle of the pool of that begin, or TCUDA_STATUS_INVALID_STATE; if that handle
 *                was destroyed, the same one, or TCUDA_STATUS_INVALID_HANDLE
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_end(tcuda_mem_pool *pool, int32_t device);

/**
 * From now on the allocations of all threads on a device, on those streams that a function
 * accepts, come from the pool, until tcuda_mem_pool_end_streams, the end of the handle, or
 * tcuda_shutdown. Of several such routes, captures and tcuda_mem_pool_begin, the one that began
 * last is used. While there is one, each allocation of any device calls the functions of its
 * device until one accepts the stream. (+: c10's beginAllocateToPool)
 *
 * @param pool       not NULL
 * @param device     ordinal, or TCUDA_CURRENT_DEVICE; one route to a pool for each, or
 *                   TCUDA_STATUS_INVALID_STATE
 * @param filter     not NULL
 * @param user_data  the caller's, passed to the filter; may be NULL
 * @param destroy    called with user_data once no thread is in the filter; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_begin_streams(tcuda_mem_pool *pool, int32_t device,
    tcuda_stream_filter_fn filter, void *user_data, tcuda_destroy_fn destroy);

/**
 * Ends the route of streams of a device to a pool. (+: c10's endAllocateToPool)
 *
 * @param pool    any handle of the pool; TCUDA_STATUS_INVALID_STATE: no streams are routed to it
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_end_streams(tcuda_mem_pool *pool, int32_t device);

/**
 * Gives the physical memory of a pool back to the driver and keeps its addresses, so that its
 * blocks are usable again after tcuda_mem_pool_wake. Waits for the devices. Until then only
 * tcuda_free may use the blocks: copies and fills are TCUDA_STATUS_INVALID_POINTER, kernels lose
 * the device; allocating there, and replaying a graph of the pool, is TCUDA_STATUS_INVALID_STATE.
 * So is sleeping while an allocation outside of the pool uses a block of it
 * (TCUDA_MEM_POOL_USE_ON_OOM), which the message names; while a capture uses the pool it is
 * TCUDA_STATUS_CAPTURING. No-op on a sleeping pool. (+: torch_memory_saver, vLLM's sleep mode)
 *
 * @param pool           not NULL
 * @param keep_contents  1: the contents of the blocks are copied to the host and come back; 0: the
 *                       contents are undefined afterwards
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_sleep(tcuda_mem_pool *pool, int32_t keep_contents);

/**
 * Puts memory, and kept contents, back at the same addresses: all of it, on all devices, or
 * nothing. Where memory is short, unused memory of the library is given back and observers are
 * called, as for an allocation; then it fails with TCUDA_STATUS_OUT_OF_MEMORY and the pool stays
 * asleep: free some memory, and try again. No-op on a pool that is awake.
 * (+: torch_memory_saver, vLLM's sleep mode)
 *
 * @param pool  not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_wake(tcuda_mem_pool *pool);

/**
 * tcuda_memory_snapshot_create of this pool alone. (torch.cuda.MemPool.snapshot)
 *
 * @param pool           not NULL
 * @param with_history   1: with the recorded history; 0: only the present state
 * @param[out] snapshot  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_snapshot(tcuda_mem_pool *pool, int32_t with_history,
    tcuda_memory_snapshot **snapshot);

/**
 * The two numbers that identify a pool in snapshots and keys of statistics.
 * (torch.cuda.MemPool.id)
 *
 * @param pool      not NULL
 * @param[out] id0  0 for a pool that tcuda_mem_pool_create made
 * @param[out] id1  0 for a pool of graphs
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_id(tcuda_mem_pool *pool, uint64_t *id0, uint64_t *id1);

/**
 * Number of references to a pool: of its handles, of each tcuda_mem_pool_begin and
 * tcuda_mem_pool_begin_streams, of PyTorch's hooks, and of captures and graphs. The pool ends with
 * the last. (torch.cuda.MemPool.use_count)
 *
 * @param pool        not NULL
 * @param[out] count  1 or more
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_use_count(tcuda_mem_pool *pool, uint32_t *count);

/**
 * Allocates a block at an address in memory that the pool has on a device, for the stream of that
 * memory. The address is at a multiple of 512 bytes from those of its other blocks, and the range
 * is free: TCUDA_STATUS_INVALID_POINTER says what is in the way, and nothing has changed. Small
 * blocks and large ones have memory of their own. The block is the caller's, to be freed by
 * tcuda_free. (+: c10's allocateWithAddress)
 *
 * @param pool   not NULL
 * @param ptr    where the block begins, for example that of a freed block of this size; its device
 *               is the block's
 * @param bytes  1 or more
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_malloc_at(tcuda_mem_pool *pool, void *ptr, size_t bytes);

/**
 * The live blocks of a pool on a device, by address: a checkpoint to which tcuda_mem_pool_restore
 * can return. The list is the caller's, and plain data. Pending blocks, which other streams may
 * still use, are not live. (torch._C._cuda_getCheckpointState)
 *
 * @param pool         not NULL
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] blocks  the first `capacity` of them; may be NULL when `capacity` is 0
 * @param capacity     length of the list
 * @param[out] count   number of live blocks
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_blocks(tcuda_mem_pool *pool, int32_t device, tcuda_pool_block *blocks,
    size_t capacity, size_t *count);

/**
 * Makes the live blocks of a pool on a device those of a checkpoint, at the same addresses. Live
 * blocks that are not in the list are freed: they must not be freed again. Blocks of the list that
 * are not live are allocated again: they are the caller's, to be freed as any block. The others
 * stay as they are. Contents do not change, and no work is queued: what a graph wrote stays
 * readable, unless freed blocks are poisoned (poison_on_free). Statistics and the history count
 * the blocks that are freed and allocated.
 *
 * All or nothing: if a block cannot be freed at once, because other streams may use it, or if the
 * memory of one went back to the driver, it is TCUDA_STATUS_INVALID_POINTER, and nothing has
 * changed. Memory that a graph uses never goes back while the graph exists.
 * (torch._C._cuda_setCheckpointPoolState)
 *
 * @param pool    no other thread may use it meanwhile
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 * @param blocks  as tcuda_mem_pool_blocks filled it, in any order; may be NULL when `count` is 0
 * @param count   length of the list
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_restore(tcuda_mem_pool *pool, int32_t device,
    const tcuda_pool_block *blocks, size_t count);

/**
 * Are these, in any order, just the live blocks of a pool on a device?
 * (torch._C._cuda_checkPoolLiveAllocations)
 *
 * @param pool        not NULL
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param ptrs        what tcuda_malloc gave; may be NULL when `count` is 0
 * @param count       length of the list
 * @param[out] equal  whether they are
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_mem_pool_check_live(tcuda_mem_pool *pool, int32_t device,
    const void *const *ptrs, size_t count, bool *equal);

/* ---- Managed memory ---- */

/**
 * Flag: no advice to the driver. Without it the device is the preferred location, and accesses the
 * memory, as in PyTorch.
 */
#define TCUDA_MANAGED_NO_ADVICE 1
/** Flag: the memory is moved to the device once it is allocated, in the order of the stream. */
#define TCUDA_MANAGED_PREFETCH 2
/** Flag: only the host uses the memory, until tcuda_memory_attach. */
#define TCUDA_MANAGED_ATTACH_HOST 4

/** Advice: mostly read, so that each reader gets a copy of the pages. Ignores the device. */
#define TCUDA_ADVISE_SET_READ_MOSTLY 1
#define TCUDA_ADVISE_UNSET_READ_MOSTLY 2 /**< Undoes TCUDA_ADVISE_SET_READ_MOSTLY. */
/** Advice: the pages are to be on the device, or the host. */
#define TCUDA_ADVISE_SET_PREFERRED_LOCATION 3
/** Undoes TCUDA_ADVISE_SET_PREFERRED_LOCATION. Ignores the device. */
#define TCUDA_ADVISE_UNSET_PREFERRED_LOCATION 4
/** Advice: the device, or the host, accesses the pages, wherever they are. */
#define TCUDA_ADVISE_SET_ACCESSED_BY 5
#define TCUDA_ADVISE_UNSET_ACCESSED_BY 6 /**< Undoes TCUDA_ADVISE_SET_ACCESSED_BY. */

#define TCUDA_ATTACH_GLOBAL 1 /**< All streams use the memory. */
#define TCUDA_ATTACH_HOST 2   /**< Only the host uses it. */
#define TCUDA_ATTACH_SINGLE 4 /**< Only the stream, and the host while the stream has no work. */

/**
 * What the driver knows about a range of managed memory. Devices are ordinals, TCUDA_CPU_DEVICE,
 * or -1: none, or not the same for all of the range.
 */
typedef struct tcuda_memory_range_info {
    size_t struct_size;          /**< From TCUDA_INIT. */
    uint64_t accessed_by;        /**< Devices that were advised to access it, as bits. */
    int32_t is_accessed_by_host; /**< 1: the host was advised to access it. */
    int32_t is_read_mostly;      /**< 1: advised to be mostly read. */
    int32_t preferred_device;    /**< Where it was advised to be. */
    int32_t prefetched_device;   /**< Where tcuda_memory_prefetch moved it last. */
} tcuda_memory_range_info;

/**
 * Allocates managed memory: the host and all devices use it at the same address, and the driver
 * moves its pages to where they are used. More can be allocated than a device has, within
 * tcuda_memory_fraction_set. It is counted in the statistics of the device, and freed by
 * tcuda_free, which waits for the device. It is not cached; memory of
 * tcuda_pluggable_allocator_managed is. Where the device has no
 * has_concurrent_managed_access, the host must not touch it while work runs. (+)
 *
 * @param bytes     any size; 0: NULL and OK
 * @param device    ordinal, TCUDA_CURRENT_DEVICE: the stream's, else this thread's current one
 * @param stream    of the first use; NULL: the current stream of the device
 * @param flags     TCUDA_MANAGED_... combined, or 0
 * @param[out] ptr  the block, the caller's, to be freed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_managed_malloc(size_t bytes, int32_t device, tcuda_stream *stream,
    uint32_t flags, void **ptr);

/**
 * An allocator of managed memory, for tcuda_mem_pool_create: blocks of such a pool are managed,
 * cached and counted as others; or for tcuda_allocator_set_current.
 * (torch.cuda._use_uvm, with tcuda_mem_pool_begin)
 *
 * @param flags           TCUDA_MANAGED_... combined, or 0; of each segment
 * @param[out] allocator  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_pluggable_allocator_managed(uint32_t flags,
    tcuda_pluggable_allocator **allocator);

/**
 * Advises the driver how a range of managed memory is used; results of work never depend on it.
 * TCUDA_STATUS_INVALID_POINTER for other memory. (+)
 *
 * @param ptr     a managed address
 * @param bytes   1 or more; the driver rounds to pages
 * @param advice  TCUDA_ADVISE_...
 * @param device  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_advise(const void *ptr, size_t bytes, int32_t advice, int32_t device);

/**
 * Moves a range of managed memory to a device or the host, in the order of a stream; the host
 * does not wait. TCUDA_STATUS_INVALID_POINTER for other memory. (+)
 *
 * @param ptr     a managed address
 * @param bytes   1 or more; the driver rounds to pages
 * @param device  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE
 * @param stream  of any device; NULL: the current stream of the current device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_prefetch(const void *ptr, size_t bytes, int32_t device,
    tcuda_stream *stream);

/**
 * Says which streams use managed memory from the present end of `stream` on. On devices without
 * has_concurrent_managed_access the host may use the memory while other streams run.
 * TCUDA_STATUS_INVALID_POINTER for other memory. (+)
 *
 * @param ptr     as allocated
 * @param bytes   as allocated
 * @param flags   a TCUDA_ATTACH_... constant
 * @param stream  not a default stream for TCUDA_ATTACH_SINGLE; NULL: the current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_attach(const void *ptr, size_t bytes, uint32_t flags,
    tcuda_stream *stream);

/**
 * What the driver knows about a range of managed memory. TCUDA_STATUS_INVALID_POINTER for other
 * memory. (+)
 *
 * @param ptr           a managed address
 * @param bytes         1 or more
 * @param[in,out] info  start from TCUDA_INIT(tcuda_memory_range_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_memory_range(const void *ptr, size_t bytes, tcuda_memory_range_info *info);

/* ---- Memory for native streams ---- */

/**
 * tcuda_malloc for a stream that the host has as a native handle: the call that an adapter of
 * another library makes for each allocation. (+)
 *
 * @param bytes      any size; 0: NULL and OK
 * @param device     ordinal, TCUDA_CURRENT_DEVICE: the stream's, else this thread's current one
 * @param cu_stream  a CUstream or cudaStream_t of a device's primary context; NULL: the default
 *                   stream of the device. It must live as long as tcuda keeps memory that was used
 *                   on it; to end it earlier, use tcuda_stream_from_external
 * @param[out] ptr   the block, aligned to 512 bytes unless another library's allocator gave it;
 *                   the caller's, to be freed by tcuda_free_on or tcuda_free
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_malloc_native(size_t bytes, int32_t device, struct CUstream_st *cu_stream,
    void **ptr);

/**
 * tcuda_malloc_native for interfaces that pass an alignment. (+)
 *
 * @param bytes      as in tcuda_malloc_native
 * @param alignment  a power of two of at most 512; 0: 512
 * @param device, cu_stream  as in tcuda_malloc_native
 * @param[out] ptr   as in tcuda_malloc_native; the caller's, to be freed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_malloc_native_aligned(size_t bytes, size_t alignment, int32_t device,
    struct CUstream_st *cu_stream, void **ptr);

/**
 * Gives a block back in the order of a stream, as cudaFreeAsync does. The stream must come after
 * all uses of the block, except those on streams that were recorded for it. Later work of the
 * stream may get the memory at once, and other streams after the work that the stream has now. The
 * host does not wait. Memory of private pools, of segments (expandable_segments:False), of another
 * device than the stream's, or freed during a capture of the stream returns to the stream that it
 * was allocated for, after that work. (+)
 *
 * @param ptr        what tcuda_malloc, tcuda_malloc_native or tcuda_torch_malloc gave; may be
 *                   NULL: no-op
 * @param cu_stream  as in tcuda_malloc_native, of any device; NULL: the default stream of ptr's
 *                   device
 * @return           TCUDA_STATUS_OUT_OF_HOST_MEMORY: ptr is not freed; call again
 */
TCUDA_API
tcuda_status tcuda_free_on(void *ptr, struct CUstream_st *cu_stream);

/* ---- Memory for PyTorch and ONNX Runtime ---- */

/**
 * Allocates memory for PyTorch: torch.cuda.memory.CUDAPluggableAllocator takes the path of this
 * library and the names of this function and tcuda_torch_free; the functions below are set one by
 * one (docs/pytorch.md).
 *
 * PyTorch has no way to receive a failure and uses what it gets: out of memory it gets NULL, and
 * its next kernel fails. The reason goes to tcuda_set_log_callback; without a callback for errors
 * the first one is written to stderr. On a stream that is captured, the block comes from the pool
 * that tcuda_torch_begin_allocate_to_pool began. (for torch.cuda.CUDAPluggableAllocator)
 *
 * @param bytes      0: NULL
 * @param device     ordinal
 * @param cu_stream  may be NULL: the device's default stream. A stream must live as long as
 *                   tcuda keeps memory that was used on it, as PyTorch's own do
 * @return           the block, aligned to 512 bytes; NULL: it failed
 */
TCUDA_NODISCARD TCUDA_API
void *tcuda_torch_malloc(ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream);

/**
 * Gives a block back, in the order of its stream; after tcuda_shutdown it does nothing.
 * (for torch.cuda.CUDAPluggableAllocator)
 *
 * @param ptr  what tcuda_torch_malloc gave, or tcuda_malloc; may be NULL: no-op
 * @param bytes, device, cu_stream  ignored: tcuda knows them
 */
TCUDA_API
void tcuda_torch_free(void *ptr, ptrdiff_t bytes, int32_t device, struct CUstream_st *cu_stream);

/**
 * For set_init_fn: initialises the library. (for torch.cuda.CUDAPluggableAllocator)
 *
 * @param device_count  devices that PyTorch sees; if it is not the number of tcuda, this is logged
 */
TCUDA_API
void tcuda_torch_init(int32_t device_count);

/** For set_reset_fn: tcuda_memory_empty_cache. (torch.cuda.empty_cache) */
TCUDA_API
void tcuda_torch_reset(void);

/**
 * For set_memory_fraction_fn: tcuda_memory_fraction_set.
 * (torch.cuda.set_per_process_memory_fraction)
 *
 * @param fraction  as for tcuda_memory_fraction_set
 * @param device    ordinal
 */
TCUDA_API
void tcuda_torch_memory_fraction(double fraction, int32_t device);
/* Refuses a double for an integer: arguments in the wrong order do not compile. A host that defines
 * or wraps the function writes its name in parentheses: (tcuda_torch_memory_fraction)(...). */
#define tcuda_torch_memory_fraction(fraction, device) \
    tcuda_torch_memory_fraction(fraction, (device) | 0)

/**
 * For set_base_alloc_fn: the segment that holds an address.
 * (for torch.cuda.CUDAPluggableAllocator)
 *
 * @param ptr         any address of a segment; may be NULL: NULL
 * @param[out] bytes  its length; may be NULL
 * @return            its first byte; NULL, and bytes untouched: tcuda has no memory there
 */
TCUDA_NODISCARD TCUDA_API
void *tcuda_torch_base_alloc(void *ptr, size_t *bytes);

/**
 * For set_record_stream_fn, without which Tensor.record_stream does nothing: records that the
 * block is also used on a stream, of any device. (tcuda_record_stream)
 * (torch.Tensor.record_stream)
 *
 * @param ptr        what tcuda_torch_malloc gave; may be NULL: no-op
 * @param cu_stream  may be NULL: the default stream of the block's device
 */
TCUDA_API
void tcuda_torch_record_stream(void *ptr, struct CUstream_st *cu_stream);

/**
 * For set_begin_allocate_to_pool: from now on allocations on a device come from a private pool,
 * created now if it is new: those on the streams of a capture, or, where id1 is not 0 and no
 * capture has begun, those of this thread. (for torch.cuda.graph)
 *
 * @param device    ordinal
 * @param id0, id1  PyTorch's MempoolId_t, by value
 * @param filter    PyTorch's std::function, which C cannot call; ignored, may be NULL
 */
TCUDA_API
void tcuda_torch_begin_allocate_to_pool(int32_t device, uint64_t id0, uint64_t id1,
    const void *filter);

/**
 * For set_end_allocate_to_pool_fn: ends that. The pool, and its cached memory, stays.
 * (for torch.cuda.CUDAPluggableAllocator)
 *
 * @param device  ordinal
 * @param id0     PyTorch's MempoolId_t, by value
 * @param id1     PyTorch's MempoolId_t, by value
 */
TCUDA_API
void tcuda_torch_end_allocate_to_pool(int32_t device, uint64_t id0, uint64_t id1);

/**
 * Marks the begin of a capture of the host on a device. tcuda finds the capture of a stream
 * without a mark; with one, slow paths of all streams look for captures, and errors for want of
 * memory name captures as a cause. (+: c10's markCaptureBegin)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_API
void tcuda_torch_mark_capture_begin(int32_t device);

/**
 * Marks the end of a capture; an end without a begin is logged. (+: c10's markCaptureEnd)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_API
void tcuda_torch_mark_capture_end(int32_t device);

/**
 * For set_release_pool: drops the reference to the pool of one tcuda_torch_begin_allocate_to_pool.
 * After the last, unused memory of the pool goes back to the driver with the next
 * tcuda_memory_empty_cache, or when memory is short, after all work of the device: launches of
 * PyTorch's graphs are not known. (for torch.cuda.CUDAPluggableAllocator)
 *
 * @param device  ordinal
 * @param id0     PyTorch's MempoolId_t, by value
 * @param id1     PyTorch's MempoolId_t, by value
 */
TCUDA_API
void tcuda_torch_release_pool(int32_t device, uint64_t id0, uint64_t id1);

/**
 * Allocates memory of the current device, in the order of its current stream, for libraries that
 * take a function void *(size_t). ONNX Runtime takes its address as the option gpu_external_alloc
 * of the CUDA execution provider. Failures are logged as those of tcuda_torch_malloc. (+)
 *
 * @param bytes  0: NULL
 * @return       the block, aligned to 512 bytes; NULL: it failed
 */
TCUDA_NODISCARD TCUDA_API
void *tcuda_ort_malloc(size_t bytes);

/**
 * Gives a block back, in the order of its stream, for libraries that take a function
 * void (void *); after tcuda_shutdown it does nothing. ONNX Runtime: gpu_external_free. (+)
 *
 * @param ptr  what tcuda_ort_malloc gave, or tcuda_malloc; may be NULL: no-op
 */
TCUDA_API
void tcuda_ort_free(void *ptr);

/**
 * tcuda_memory_empty_cache for libraries that take a function void (void). ONNX Runtime:
 * gpu_external_empty_cache. (+)
 */
TCUDA_API
void tcuda_ort_empty_cache(void);

/* ---- Pinned host memory ---- */

/** How memory is registered: TCUDA_HOST_REGISTER_..., CUDA's numbers, which can be combined. */
typedef uint32_t tcuda_host_register_flags;
#define TCUDA_HOST_REGISTER_PORTABLE 1 /**< Page-locked for all devices. */
/** Kernels may use it at its own address. On systems with unified addressing it always is. */
#define TCUDA_HOST_REGISTER_MAPPED 2
/**
 * Memory of a device, as of a PCIe card, which is not cached; its address and size are those of
 * whole pages.
 */
#define TCUDA_HOST_REGISTER_IO_MEMORY 4
#define TCUDA_HOST_REGISTER_READ_ONLY 8 /**< Kernels only read it. */

/**
 * Durations of calls, in microseconds. Longest and shortest are since the peaks were reset, the
 * others since the totals were.
 */
typedef struct tcuda_duration {
    uint64_t total_us; /**< Sum. */
    uint64_t max_us;   /**< The longest. */
    uint64_t min_us;   /**< The shortest that took 1 microsecond or more. */
    uint64_t count;    /**< Number of calls. */
    uint64_t avg_us;   /**< total_us / count. */
} tcuda_duration;

/** torch.cuda.host_memory_stats(), the same names. */
typedef struct tcuda_host_memory_statistics {
    size_t struct_size;      /**< From TCUDA_INIT. */
    uint64_t num_host_alloc; /**< Times that memory came from the driver. */
    uint64_t num_host_free;  /**< Times that memory went back to it. */
    tcuda_stat allocations;  /**< Segments obtained from the driver; blocks are cut out of them. */
    tcuda_stat allocated_bytes; /**< Their bytes. */
    tcuda_stat active_requests; /**< Blocks held by the host, and freed ones awaiting streams. */
    tcuda_stat active_bytes;    /**< Their bytes, rounded up to 64, above 64 KiB to 512. */
    tcuda_duration host_alloc_time; /**< Durations of the num_host_alloc calls. */
    tcuda_duration host_free_time;  /**< Durations of the num_host_free calls. */
} tcuda_host_memory_statistics;

/**
 * Page-locked memory of the host, usable from all devices. Copies from and to it run in stream
 * order while the host continues, so that the host must not touch its bytes until the copy is
 * done. Sizes are rounded up to 64 bytes (to 512 above 64 KiB). Memory comes from the driver in
 * segments of 2 MiB and more, which are cached until tcuda_host_memory_empty_cache. Never waits
 * for a device. (torch.Tensor.pin_memory)
 *
 * @param bytes     any size; 0: NULL and OK
 * @param[out] ptr  the block, aligned to 64 bytes, above 64 KiB to 512; the caller's, to be freed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_malloc(size_t bytes, void **ptr);

/**
 * Gives page-locked memory back, for the next tcuda_host_malloc. It is reused only after the
 * copies and fills of this library that use it, and the streams that tcuda_host_record named; the
 * host does not wait. Other work is not tracked: kernels, callbacks and copies by the driver
 * itself. (+)
 *
 * @param ptr  what tcuda_host_malloc gave; may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_host_free(void *ptr);

/**
 * Records that a block is used on `stream`: once freed, it is not reused before the work queued
 * there at that time is done. For kernels, callbacks and copies that do not come from this
 * library; its own are recorded automatically. A block that is used on a stream while that is
 * captured into a graph may be used by each launch: it is reused only after the last graph of that
 * capture is destroyed and its launches are over. If the host captures by the driver itself, the
 * block is kept until tcuda_shutdown. (+)
 *
 * @param ptr     any address in a block of tcuda_host_malloc; may be NULL: no-op
 * @param stream  NULL: the current stream of the current device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_record(void *ptr, tcuda_stream *stream);

/**
 * Page-locks memory of the host where it is, so that copies of it are as fast, and as independent
 * of the host, as those of tcuda_host_malloc. The caller unregisters it before it frees it;
 * tcuda_shutdown unregisters what is left. It does not appear in tcuda_host_memory_stats.
 * TCUDA_STATUS_INVALID_POINTER if a part of it is page-locked already;
 * TCUDA_STATUS_OUT_OF_HOST_MEMORY at the system's limit of locked memory.
 * (torch.cuda.cudart().cudaHostRegister)
 *
 * @param ptr    not NULL; the system locks the whole pages that the range touches
 * @param bytes  at least 1
 * @param flags  TCUDA_HOST_REGISTER_..., or 0
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_register(void *ptr, size_t bytes, tcuda_host_register_flags flags);

/**
 * Ends the registration of memory. Waits for the work of the devices.
 * (torch.cuda.cudart().cudaHostUnregister)
 *
 * @param ptr  as it was given to tcuda_host_register; may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_host_unregister(void *ptr);

/**
 * All statistics of pinned memory; zeros before initialisation. Each number is exact; while other
 * threads allocate, they may be of moments that differ a little. (torch.cuda.host_memory_stats,
 * torch.cuda.host_memory_stats_as_nested_dict)
 *
 * @param[in,out] stats  start from TCUDA_INIT(tcuda_host_memory_statistics)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_memory_stats(tcuda_host_memory_statistics *stats);

/**
 * Peaks become the current values; the longest and shortest times are measured anew.
 * (torch.cuda.reset_peak_host_memory_stats)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_memory_reset_peak(void);

/**
 * Totals become 0: allocated and freed, counts and times of calls.
 * (torch.cuda.reset_accumulated_host_memory_stats)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_memory_reset_accumulated(void);

/**
 * Returns pinned memory in which no block is in use to the driver, which waits for the work of the
 * devices when there is any such memory. Freed blocks that still wait for streams stay. What the
 * driver refuses stays cached, and the first failure is the status. (+)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_host_memory_empty_cache(void);

/* ---- Sharing with other processes ---- */

/** Gives another process access to a block: plain data, to be sent. */
typedef struct tcuda_ipc_handle {
    uint8_t bytes[512]; /**< Opaque to the host; all of them are part of the handle. */
} tcuda_ipc_handle;

/**
 * A handle of an address, for one receiver: send it by any means. There tcuda_ipc_import returns
 * the same byte of the block, so that a part of a block can be shared by its own address. Work
 * that the receiver queues comes after what `stream` holds now. The block is not reused until the
 * receiver has closed it or has ended, also if it is freed here before. Receivers are processes of
 * the same user on this machine; they can also read other memory that is mapped with the block.
 * TCUDA_STATUS_NOT_SUPPORTED for memory that is not of the cache, TCUDA_STATUS_INVALID_STATE for
 * imported memory, TCUDA_STATUS_CAPTURING for a stream that is captured. With more than 1000
 * exports alive it waits for the stream. (torch.multiprocessing)
 *
 * @param ptr          any byte of a block of tcuda_malloc's, from the cache
 * @param stream       NULL: the current stream of ptr's device
 * @param[out] handle  valid until all processes that imported it have closed it
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_ipc_export(void *ptr, tcuda_stream *stream, tcuda_ipc_handle *handle);

/**
 * Maps another process's block and returns the address that was exported; `stream` waits for what
 * its owner had queued. The same handle again gives the same pointer, to be closed once more. The
 * library sends a request to the owner, which usually answers at once: TCUDA_STATUS_PEER_GONE if
 * it has ended, or does not answer for 10 seconds, as a stopped process.
 * TCUDA_STATUS_INVALID_ARGUMENT for a handle that was changed, that all its receivers have closed,
 * or of another user; TCUDA_STATUS_NO_DEVICE without its device; TCUDA_STATUS_INVALID_STATE in the
 * process that exported it. (torch.multiprocessing)
 *
 * @param handle      what tcuda_ipc_export wrote in the other process
 * @param stream      of the device that the block is on; NULL: the current one of that device
 * @param[out] ptr    the byte that tcuda_ipc_export was called with; the caller's, to be closed
 * @param[out] bytes  from there to the end of the requested size of the block; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_ipc_import(const tcuda_ipc_handle *handle, tcuda_stream *stream, void **ptr,
    size_t *bytes);

/**
 * Closes an imported block once, after the work that `stream` holds now; the host waits for that.
 * Work of other streams with the block must be over, or come before that work.
 * (the end of a tensor of torch.multiprocessing)
 *
 * @param ptr     what tcuda_ipc_import gave; may be NULL: no-op
 * @param stream  NULL: the current stream of ptr's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_ipc_close(void *ptr, tcuda_stream *stream);

/**
 * Withdraws a handle, such as one whose receiver ended before it imported it: from now on no
 * process can import it. A process that has imported it keeps the block until it closes it. (+)
 *
 * @param handle  what tcuda_ipc_export wrote in this process
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_ipc_withdraw(const tcuda_ipc_handle *handle);

/**
 * Gives memory back to the cache that was freed here and that no receiver uses any more;
 * allocations do so too before they take more memory from the driver. (torch.cuda.ipc_collect)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_ipc_collect(void);

/* ===================================== Files ================================================== */

/** A file that is read into device memory and written from it. */
typedef struct tcuda_file tcuda_file;

/** How a file is opened: TCUDA_FILE_..., which can be combined. READ or WRITE is one of them. */
typedef uint32_t tcuda_file_flags;
#define TCUDA_FILE_READ 1     /**< For tcuda_file_read. */
#define TCUDA_FILE_WRITE 2    /**< For tcuda_file_write. */
#define TCUDA_FILE_CREATE 4   /**< Created if there is none; needs WRITE. */
#define TCUDA_FILE_TRUNCATE 8 /**< Emptied; needs WRITE. */
/**
 * Transferred through pinned memory by the system's own calls: without cuFile, on every machine.
 */
#define TCUDA_FILE_STAGING 16

/**
 * Can files be opened without TCUDA_FILE_STAGING? That takes NVIDIA's cuFile, of GPUDirect
 * Storage: the one that TCUDA_CUFILE_PATH names, else libcufile.so.0. False on the simulated
 * machine, where the variable may name a stand-in for tests. Does not initialise the library.
 * (torch.cuda.gds.is_available)
 *
 * @param[out] supported  whether they can
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_file_is_supported(bool *supported);

/**
 * Opens a file and registers it with cuFile, with direct access (O_DIRECT) where its file system
 * has that. On failure a file that exists is as it was. TCUDA_STATUS_FILE_ERROR if the system
 * refuses it, or it is a directory, pipe or socket; TCUDA_STATUS_NO_LIBRARY without cuFile,
 * TCUDA_STATUS_NOT_SUPPORTED on the simulated machine, and where the platform or the file system
 * has no GPUDirect Storage: TCUDA_FILE_STAGING needs neither. (torch.cuda.gds.GdsFile,
 * torch.cuda.gds.GdsFile.register_handle)
 *
 * @param path       any bytes, ending in a NUL
 * @param flags      TCUDA_FILE_...
 * @param[out] file  the caller's, to be closed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_file_open(const char *path, tcuda_file_flags flags, tcuda_file **file);

/**
 * Closes a file, and ends its registration. Calls of other threads that use it end first: the last
 * of them closes it. (torch.cuda.gds.GdsFile.deregister_handle)
 *
 * @param file  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_file_close(tcuda_file *file);

/**
 * Reads from a file into device memory. Waits for the work that `stream` holds, and returns when
 * the bytes are in memory: all streams may use them. Work of other streams with that memory must
 * be over. At the end of the file fewer bytes are read, beyond it none. Short transfers of the
 * system, and signals, do not end it. TCUDA_STATUS_FILE_ERROR if the system fails;
 * TCUDA_STATUS_CUFILE_ERROR if cuFile does; TCUDA_STATUS_CAPTURING on a captured stream;
 * TCUDA_STATUS_INVALID_POINTER for memory of the host. Parts of the memory may be written on
 * failure. (torch.cuda.gds.GdsFile.load_storage)
 *
 * @param file             from tcuda_file_open
 * @param ptr              device memory, of any alignment; may be NULL if bytes is 0
 * @param bytes            not beyond the end of the block or allocation
 * @param file_offset      from the beginning of the file, of any alignment; not negative
 * @param stream           NULL: the current stream of ptr's device
 * @param[out] bytes_done  less than bytes only at the end of the file
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_file_read(tcuda_file *file, void *ptr, size_t bytes, int64_t file_offset,
    tcuda_stream *stream, size_t *bytes_done);

/**
 * Writes device memory to a file, which grows if necessary. Waits for the work that `stream`
 * holds, and returns when the bytes are in the file, though the system may still have to write
 * them to a disk. Statuses are those of tcuda_file_read; TCUDA_STATUS_FILE_ERROR also on a full
 * disk: then a part may be written. (torch.cuda.gds.GdsFile.save_storage)
 *
 * @param file             from tcuda_file_open
 * @param ptr              device memory, of any alignment; may be NULL if bytes is 0
 * @param bytes            not beyond the end of the block or allocation
 * @param file_offset      from the beginning of the file, of any alignment; not negative
 * @param stream           NULL: the current stream of ptr's device
 * @param[out] bytes_done  always bytes
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_file_write(tcuda_file *file, const void *ptr, size_t bytes, int64_t file_offset,
    tcuda_stream *stream, size_t *bytes_done);

/**
 * Registers device memory with cuFile, so that its transfers need no copy through memory of the
 * host where the machine has GPUDirect Storage. Transfers of memory that is not registered have
 * the same results. The caller unregisters it before it frees it. tcuda_memory_empty_cache
 * unregisters what was freed, and tcuda_shutdown what is left. TCUDA_STATUS_INVALID_POINTER if a
 * part of it is registered; without cuFile statuses are those of tcuda_file_open.
 * (torch.cuda.gds.gds_register_buffer)
 *
 * @param ptr    device memory
 * @param bytes  at least 1, and not beyond the end of the block or allocation
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_file_register_buffer(void *ptr, size_t bytes);

/**
 * Ends the registration of device memory. (torch.cuda.gds.gds_deregister_buffer)
 *
 * @param ptr  as it was given to tcuda_file_register_buffer; may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_file_unregister_buffer(void *ptr);

/**
 * The file's descriptor and cuFile's handle (CUfileHandle_t), for calls of the system and of
 * cuFile itself. (+)
 *
 * @param file                from tcuda_file_open
 * @param[out] descriptor     borrowed: valid until the file is closed; may be NULL
 * @param[out] cufile_handle  borrowed; NULL for a file with TCUDA_FILE_STAGING; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_file_native(tcuda_file *file, int32_t *descriptor, void **cufile_handle);

/* ===================================== Tensors ================================================ */

/** tcuda_tensor.device.device_type, as DLPack: plain memory of the host. */
#define TCUDA_DEVICE_CPU 1
#define TCUDA_DEVICE_CUDA 2          /**< Memory of a device. */
#define TCUDA_DEVICE_CUDA_HOST 3     /**< Pinned memory of the host. */
#define TCUDA_DEVICE_CUDA_MANAGED 13 /**< Managed memory. */

/** tcuda_dtype.code, as DLPack; dlpack.h has the rarer ones, which are accepted too. */
#define TCUDA_DTYPE_INT 0
#define TCUDA_DTYPE_UINT 1           /**< Without a sign. */
#define TCUDA_DTYPE_FLOAT 2          /**< IEEE 754, of 16, 32 or 64 bits. */
#define TCUDA_DTYPE_BFLOAT 4         /**< bfloat16. */
#define TCUDA_DTYPE_COMPLEX 5        /**< Two floats; the bits are those of both. */
#define TCUDA_DTYPE_BOOL 6           /**< A byte that is 0 or 1. */
#define TCUDA_DTYPE_FLOAT8_E4M3FN 10 /**< 8 bits. */
#define TCUDA_DTYPE_FLOAT8_E5M2 12   /**< 8 bits. */
#define TCUDA_DTYPE_FLOAT4_E2M1FN 17 /**< 4 bits. */

/** Where the memory of a tensor is; layout of DLDevice. */
typedef struct tcuda_tensor_device {
    int32_t device_type; /**< TCUDA_DEVICE_... */
    int32_t device_id;   /**< Ordinal; 0 for memory of the host. */
} tcuda_tensor_device;

/** What the elements of a tensor are; layout of DLDataType. */
typedef struct tcuda_dtype {
    uint8_t code;   /**< TCUDA_DTYPE_..., or another code of DLPack. */
    uint8_t bits;   /**< Bits of one number: 32 for a float. */
    uint16_t lanes; /**< 1; more for vectors. */
} tcuda_dtype;

/**
 * A view of memory; layout of DLTensor, so that a cast works. It owns nothing unless the library
 * filled it in: then tcuda_tensor_release frees what the library put there.
 */
typedef struct tcuda_tensor {
    void *data;                 /**< Start of the memory; may be NULL if there are no elements. */
    tcuda_tensor_device device; /**< Device of the memory. */
    int32_t ndim;               /**< Number of dimensions, 0 to 64; 0 is one element. */
    tcuda_dtype dtype;          /**< What the elements are. */
    int64_t *shape;             /**< ndim sizes; may be NULL if ndim is 0. */
    /** ndim distances between neighbours, in elements; may be NULL: contiguous, row-major. */
    int64_t *strides;
    uint64_t byte_offset; /**< Bytes from data to the element whose indices are 0. */
} tcuda_tensor;

/**
 * Frees what the library put into a tensor and zeroes it: the library's memory in the order of its
 * stream, a capsule by its deleter. A tensor that is all zero has nothing: OK. (+)
 *
 * @param[in,out] tensor  one that the library filled in, its data, shape and strides as they
 *                        were, or TCUDA_STATUS_INVALID_ARGUMENT; may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_tensor_release(tcuda_tensor *tensor);

/**
 * The device that a tensor is on; -1 when it is on the host, so that tcuda_device_exchange with it
 * changes nothing. It is read from the struct: memory is not looked up, and the library is not
 * initialised. (torch.cuda.device_of)
 *
 * @param tensor       not NULL; its device field is read
 * @param[out] device  its ordinal, or -1
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_tensor_device_of(const tcuda_tensor *tensor, int32_t *device);

/**
 * Moves a capsule into a tensor: tcuda_tensor_release calls its deleter, once and on its own
 * thread, also after tcuda_shutdown. On failure the capsule stays the caller's. Does not
 * initialise the library, and does not look the memory up; functions that use the tensor do.
 * (torch.from_dlpack)
 *
 * @param managed      a DLManagedTensorVersioned of DLPack 1, of any device and type. If its flags
 *                     say read-only, then until it is released functions that write refuse the
 *                     tensor, and tensors of the host's own that share a byte with it
 * @param[out] tensor  the caller's, to be released; its shape and strides are the library's
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_tensor_from_dlpack(struct DLManagedTensorVersioned *managed,
    tcuda_tensor *tensor);

/**
 * Moves a tensor into a capsule for other libraries, and zeroes it. Its deleter, which may be
 * called on any thread and after tcuda_shutdown, frees the memory as tcuda_free does: in the order
 * of the stream that it was allocated on. If the consumer uses other streams, call
 * tcuda_record_stream for them. What tcuda_tensor_from_dlpack made becomes its original capsule
 * again, unless the host has changed it: then the new capsule's deleter calls that of the
 * original. The capsule's data is the first element, and its byte_offset 0.
 * (torch.utils.dlpack.to_dlpack)
 *
 * @param[in,out] tensor  one that the library filled in; or one of the host's own, with data from
 *                        tcuda_malloc: the capsule owns the block, and copies shape and strides
 * @param[out] managed    the caller's, whose deleter is to be called once, by it or a consumer
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_tensor_to_dlpack(tcuda_tensor *tensor,
    struct DLManagedTensorVersioned **managed);

/* ===================================== Random numbers ========================================= */

/** Bytes of a state: seed, then offset, little-endian; what torch.cuda.get_rng_state gives. */
#define TCUDA_RANDOM_STATE_BYTES 16

/**
 * Seed and offset of a random stream, of one device. Each device has a default generator, which is
 * seeded by the system at its first use.
 */
typedef struct tcuda_generator tcuda_generator;

/**
 * For a kernel of the host, by value: its seed is seed_ptr ? *seed_ptr : seed, its offset is
 * offset + (offset_ptr ? *offset_ptr : 0).
 */
typedef struct tcuda_philox_state {
    uint64_t seed; /**< Seed, unless there is a seed_ptr. */
    /** Offset of each thread in 32-bit words, from *offset_ptr on if there is one. */
    uint64_t offset;
    /** Device memory, in a capture only: each replay writes the seed there. */
    const uint64_t *seed_ptr;
    /** Device memory, in a capture only: each replay writes the offset there. */
    const uint64_t *offset_ptr;
} tcuda_philox_state;

/**
 * Seeds the default generator of a device. Before the library is initialised the seed is
 * remembered, and nothing is initialised. Seeds and states take effect then, in the order of their
 * calls, and for TCUDA_CURRENT_DEVICE on the device that is current then; the call that
 * initialises gives TCUDA_STATUS_INVALID_DEVICE, once, if one is for a device that does not exist.
 * In a capture only the present seed is accepted, and changes nothing. In the forked child of a
 * process that had initialised the library it is ignored, as in torch. (torch.cuda.manual_seed)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 * @param seed    any number
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_manual_seed(int32_t device, uint64_t seed);

/**
 * tcuda_random_manual_seed for all devices. (torch.cuda.manual_seed_all)
 *
 * @param seed  any number
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_manual_seed_all(uint64_t seed);

/**
 * Seeds the default generator of a device with a random number of the system, of 53 bits. Before
 * the library is initialised the seed is remembered, and in a forked child ignored, as by
 * tcuda_random_manual_seed. (torch.cuda.seed)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_seed(int32_t device);

/** tcuda_random_seed for all devices, with one number for all. (torch.cuda.seed_all) */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_seed_all(void);

/**
 * The present seed of a device's default generator. (torch.cuda.initial_seed)
 *
 * @param device     ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] seed  the seed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_initial_seed(int32_t device, uint64_t *seed);

/**
 * The state of a device's default generator. (torch.cuda.get_rng_state)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] state  TCUDA_RANDOM_STATE_BYTES bytes
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_state_get(int32_t device, uint8_t *state);

/**
 * Sets the state of a device's default generator; before the library is initialised it is
 * remembered, as a seed is (tcuda_random_manual_seed). (torch.cuda.set_rng_state)
 *
 * @param device  ordinal, or TCUDA_CURRENT_DEVICE
 * @param state   TCUDA_RANDOM_STATE_BYTES bytes; its offset is a multiple of 4
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_state_set(int32_t device, const uint8_t *state);

/**
 * The states of all devices, in their order. (torch.cuda.get_rng_state_all)
 *
 * @param[out] states  room for `capacity` states; may be NULL if capacity is 0
 * @param capacity     room in states, in states
 * @param[out] count   number of devices; if more than `capacity`, states are missing
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_state_get_all(uint8_t *states, size_t capacity, size_t *count);

/**
 * Sets the states of devices 0 to count - 1; before the library is initialised they are
 * remembered. (torch.cuda.set_rng_state_all)
 *
 * @param states  `count` states, one after the other; may be NULL if count is 0
 * @param count   at most the number of devices
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_state_set_all(const uint8_t *states, size_t count);

/**
 * A generator with torch's default seed, 67280421310721. (torch.Generator)
 *
 * @param device          ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] generator  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_create(int32_t device, tcuda_generator **generator);

/**
 * Destroys a generator; graphs that it is registered with keep what they need. A no-op on a
 * device's default one. (the end of a torch.Generator)
 *
 * @param generator  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_generator_destroy(tcuda_generator *generator);

/**
 * The default generator of a device; borrowed. (torch.cuda.default_generators)
 *
 * @param device          ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] generator  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_default(int32_t device, tcuda_generator **generator);

/**
 * The seed of a generator. (torch.Generator.initial_seed)
 *
 * @param generator  NULL: the default one of the current device
 * @param[out] seed  the seed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_seed_get(tcuda_generator *generator, uint64_t *seed);

/**
 * Seeds a generator; its offset becomes 0. While this thread's current stream of the generator's
 * device is captured, only the present seed is accepted, and changes nothing.
 * (torch.Generator.manual_seed)
 *
 * @param generator  NULL: the default one of the current device
 * @param seed       any number
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_seed_set(tcuda_generator *generator, uint64_t seed);

/**
 * Number of 32-bit words that were drawn from each thread's stream of numbers. This and the
 * functions that follow return TCUDA_STATUS_CAPTURING while this thread's current stream of the
 * generator's device is captured. (torch.Generator.get_offset)
 *
 * @param generator    NULL: the default one of the current device
 * @param[out] offset  a multiple of 4
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_offset_get(tcuda_generator *generator, uint64_t *offset);

/**
 * Sets the offset. (torch.Generator.set_offset)
 *
 * @param generator  NULL: the default one of the current device
 * @param offset     in 32-bit words; a multiple of 4
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_offset_set(tcuda_generator *generator, uint64_t offset);

/**
 * Seed and offset. (torch.Generator.get_state)
 *
 * @param generator   NULL: the default one of the current device
 * @param[out] state  TCUDA_RANDOM_STATE_BYTES bytes
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_state_get(tcuda_generator *generator, uint8_t *state);

/**
 * Sets seed and offset. (torch.Generator.set_state)
 *
 * @param generator  NULL: the default one of the current device
 * @param state      TCUDA_RANDOM_STATE_BYTES bytes; its offset is a multiple of 4
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_state_set(tcuda_generator *generator, const uint8_t *state);

/**
 * Draws random numbers for a kernel of the host, which is to run on this thread's current stream
 * of the generator's device. While that stream is captured the numbers belong to the graph, whose
 * replays draw new ones: the generator must be registered with it, or TCUDA_STATUS_CAPTURING.
 * (+, as philox_cuda_state of PyTorch's C++)
 *
 * @param generator   NULL: the default one of the current device
 * @param increment   32-bit words that each thread draws; rounded up to a multiple of 4
 * @param[out] state  pass it to the kernel by value
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_generator_philox_state(tcuda_generator *generator, uint64_t increment,
    tcuda_philox_state *state);

/**
 * Fills a tensor with numbers that are uniform in [low, high). The bits of this and the next
 * functions equal those of torch 2.11 on the same device, and so does the generator's state
 * afterwards. Work is queued, in order with what `stream` holds. A tensor without elements:
 * nothing, and the generator is unchanged. Floats, bfloat16, and complex numbers, whose parts are
 * filled. (Tensor.uniform_)
 *
 * @param tensor     of any strides that keep its elements apart, and of a type that torch can fill
 *                   so, or TCUDA_STATUS_INVALID_ARGUMENT
 * @param low, high  numbers that the type can hold; so must be their difference
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one. While it is captured, the
 *                   generator must be registered with the graph, whose replays draw new numbers
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_uniform(const tcuda_tensor *tensor, double low, double high,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Normal numbers: floats, bfloat16, and complex numbers, whose parts have half of the variance
 * each. (Tensor.normal_)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param mean       any number
 * @param stddev     not negative
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_normal(const tcuda_tensor *tensor, double mean, double stddev,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Integers in [low, high): any integers, floats and bool. (Tensor.random_(low, high), randint)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param low, high  numbers that the type has; bounds of floats are narrowed so that no number is
 *                   rounded past them
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_integers(const tcuda_tensor *tensor, int64_t low, int64_t high,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Integers from `low` to the largest that the type has, inclusive, which no `high` could express
 * for int64; of floats to 2 to the power of their digits. (Tensor.random_(low, None))
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param low        INT64_MIN: all numbers of 64 bits; int64, float64, float32 and bfloat16 only
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_integers_from(const tcuda_tensor *tensor, int64_t low,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Integers from 0 to the largest that the type has; of floats to 2 to the power of their digits.
 * It is a function of its own because torch draws other bits for it than for the same range with
 * bounds. (Tensor.random_())
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_integers_all(const tcuda_tensor *tensor, tcuda_generator *generator,
    tcuda_stream *stream);

/**
 * 1 with probability p, else 0: integers, floats and bool. (Tensor.bernoulli_)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param p          0 to 1
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_bernoulli(const tcuda_tensor *tensor, double p,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * tcuda_random_bernoulli with a probability for each element. Invalid probabilities, which torch
 * refuses while it runs, count as 0 below 0 or where they are NaN, and as 1 above 1.
 * (torch.Tensor.bernoulli_ with a tensor)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param p          floats or bfloat16 on the same device and of the same shape; strides of 0
 *                   repeat, as those of Tensor.expand
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_bernoulli_tensor(const tcuda_tensor *tensor, const tcuda_tensor *p,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Exponential numbers: floats and bfloat16. (Tensor.exponential_)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param rate       above 0: torch's lambd
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_exponential(const tcuda_tensor *tensor, double rate,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Log-normal numbers: floats and bfloat16. (Tensor.log_normal_)
 *
 * @param tensor        written; as for tcuda_random_uniform
 * @param mean, stddev  of the logarithm; stddev above 0
 * @param generator     of the tensor's device; NULL: its default one
 * @param stream        of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_log_normal(const tcuda_tensor *tensor, double mean, double stddev,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Cauchy's numbers: floats and bfloat16. (Tensor.cauchy_)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param median     any number
 * @param sigma      above 0: half of the range between the quartiles
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_cauchy(const tcuda_tensor *tensor, double median, double sigma,
    tcuda_generator *generator, tcuda_stream *stream);

/**
 * Number of trials up to the first success: floats, bfloat16, signed integers and uint8.
 * (Tensor.geometric_)
 *
 * @param tensor     written; as for tcuda_random_uniform
 * @param p          of a success, above 0 and below 1
 * @param generator  of the tensor's device; NULL: its default one
 * @param stream     of the tensor's device; NULL: its current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_random_geometric(const tcuda_tensor *tensor, double p,
    tcuda_generator *generator, tcuda_stream *stream);

/* ===================================== Graphs ================================================= */

/** Captured work, ready to replay. (torch.cuda.CUDAGraph) */
typedef struct tcuda_graph tcuda_graph;
/** A host function that was captured, forward and perhaps backward. */
typedef struct tcuda_graphed_callable tcuda_graphed_callable;

/** Which unsafe calls invalidate a capture: TCUDA_CAPTURE_..., CUDA's numbers. */
typedef int32_t tcuda_capture_mode;
#define TCUDA_CAPTURE_GLOBAL 0       /**< Those of any thread. */
#define TCUDA_CAPTURE_THREAD_LOCAL 1 /**< Those of the thread that captures. */
#define TCUDA_CAPTURE_RELAXED 2      /**< None. */

/**
 * What the condition of a node does: TCUDA_CONDITION_IF or TCUDA_CONDITION_WHILE, CUDA's numbers.
 */
typedef int32_t tcuda_condition;
#define TCUDA_CONDITION_IF 0    /**< The body runs once if the condition holds. */
#define TCUDA_CONDITION_WHILE 1 /**< The body runs again as long as the condition holds. */

/** Steps of a graph's life: TCUDA_GRAPH_..., which can be combined. */
typedef uint32_t tcuda_graph_event;
/**
 * The capture has begun. Work that the hook queues on the captured streams is captured, and calls
 * that are unsafe during captures invalidate it.
 */
#define TCUDA_GRAPH_CAPTURE_BEGUN 1
/**
 * The capture has ended, neither aborted nor failed, and the graph is not executable yet; the
 * template exists, kept or not.
 */
#define TCUDA_GRAPH_CAPTURE_ENDED 2
/** The graph was made executable, perhaps again; the template exists, kept or not. */
#define TCUDA_GRAPH_INSTANTIATED 4
#define TCUDA_GRAPH_REPLAY_BEGINS 8 /**< A replay is about to be queued; the graph is executable. */
/** A replay was queued, or failed; its work need not have run. */
#define TCUDA_GRAPH_REPLAY_QUEUED 16
/**
 * What was captured is about to be destroyed, by tcuda_graph_reset or tcuda_graph_destroy. Replays
 * may still be running.
 */
#define TCUDA_GRAPH_DESTROYED 32

/**
 * Called at a step of a graph's life, on the thread that takes it, perhaps on several threads at
 * once. It cannot stop the step. It may look at the graph, and call the library as the thread
 * could before. In a replay of a graphed callable, calls that wait give
 * TCUDA_STATUS_INVALID_STATE.
 *
 * event is one of TCUDA_GRAPH_...; graph is NULL for those of a graphed callable; cu_graph, the
 * template, and cu_graph_exec are NULL where there is none at that step.
 */
typedef void (*tcuda_graph_hook_fn)(void *user_data, tcuda_graph_event event, tcuda_graph *graph,
    struct CUgraph_st *cu_graph, struct CUgraphExec_st *cu_graph_exec);

/**
 * Queues the work that computes outputs from inputs on a stream, which is also the current one,
 * and describes the outputs; their shape and strides are copied. It runs several times: see
 * tcuda_graphed_callable_create. Memory of outputs that it allocated with tcuda_malloc belongs to
 * the library once it returns 0, and the library frees it. All other memory stays the host's, and
 * must be the same in each run. Returns 0, or a code of its own for TCUDA_STATUS_CALLBACK_FAILED.
 *
 * In a backward pass the inputs are the gradients of the outputs, and the outputs are the
 * gradients of the inputs; an output that is left untouched means that the input has no gradient.
 */
typedef int32_t (*tcuda_callable_fn)(void *user_data, const tcuda_tensor *inputs, size_t num_inputs,
    tcuda_stream *stream, tcuda_tensor *outputs, size_t num_outputs);

/** What is to be captured. */
typedef struct tcuda_callable {
    size_t struct_size;        /**< sizeof(tcuda_callable); also the stride of a list of them. */
    tcuda_callable_fn forward; /**< Computes outputs from inputs. */
    /** Computes gradients of inputs from those of outputs; may be NULL: forward only. */
    tcuda_callable_fn backward;
    void *user_data;          /**< Passed to both. */
    tcuda_destroy_fn destroy; /**< Frees user_data when the callable is destroyed; may be NULL. */
    /** Tensors like the inputs, in memory of one device; their values are copied. */
    const tcuda_tensor *sample_inputs;
    size_t num_inputs;  /**< Number of them. */
    size_t num_outputs; /**< Number of outputs of forward. */
} tcuda_callable;

/** How it is captured. */
typedef struct tcuda_graphed_callable_options {
    size_t struct_size;            /**< sizeof(tcuda_graphed_callable_options). */
    tcuda_mem_pool *pool;          /**< May be NULL: a new one, which all callables share. */
    int32_t warmup_iterations;     /**< Runs of each callable before it is captured; 0: 3. */
    tcuda_capture_mode error_mode; /**< TCUDA_CAPTURE_... */
} tcuda_graphed_callable_options;

/**
 * An empty graph. (torch.cuda.CUDAGraph, enable_debug_mode)
 *
 * @param keep        1: the template stays after the capture, for tcuda_graph_update,
 *                    tcuda_graph_debug_dump and changes by the host, and the graph becomes
 *                    executable by tcuda_graph_instantiate or its first replay; 0: it is
 *                    executable when its capture ends, and the template is destroyed
 * @param[out] graph  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_create(int32_t keep, tcuda_graph **graph);

/**
 * Destroys a graph. Replays that are under way continue; a capture that is under way is aborted.
 * The pool ends when nothing else holds it: then its memory serves new pools, after the replays,
 * or goes back to the driver with the next tcuda_memory_empty_cache.
 * (the end of a torch.cuda.CUDAGraph)
 *
 * @param graph  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_graph_destroy(tcuda_graph *graph);

/**
 * Begins to capture the work of a stream, and of streams that come to wait for it, instead of
 * running it. Allocations of any thread on these streams come from the graph's pool, where memory
 * keeps its address as long as the pool exists. Pinned memory that is used on them stays until the
 * graph is destroyed. Blocks that several streams used and that are freed meanwhile are reused
 * only after the capture. tcuda_graph_replay fails with TCUDA_STATUS_CAPTURING. A call that waits
 * for a captured stream, or queries it, fails with it too, and invalidates the capture.
 * (torch.cuda.CUDAGraph.capture_begin)
 *
 * @param graph       an empty graph
 * @param stream      not a default one; NULL is the current stream
 * @param pool        may be NULL: a new one. Graphs that share one reuse each other's memory: they
 *                    must replay in the order of their captures, or not need earlier outputs
 * @param error_mode  TCUDA_CAPTURE_...: which threads' unsafe calls invalidate the capture, as
 *                    cudaMalloc or a wait for any stream; calls that tcuda makes itself are safe
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_capture_begin(tcuda_graph *graph, tcuda_stream *stream,
    tcuda_mem_pool *pool, tcuda_capture_mode error_mode);

/**
 * Ends the capture, on the thread that began it unless the mode was TCUDA_CAPTURE_RELAXED. If it
 * fails, or the capture was invalidated (TCUDA_STATUS_CAPTURE_INVALIDATED), the graph is empty and
 * the stream is usable again. A graph without work is logged as a warning.
 * Hooks run between its two parts. (torch.cuda.CUDAGraph.capture_end, capture_end_pre,
 * capture_end_post)
 *
 * @param graph  that captures
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_capture_end(tcuda_graph *graph);

/**
 * Ends a capture without a graph, on any thread, also an invalidated one; the graph is empty and
 * the stream is usable again. No-op on an empty graph. (+)
 *
 * @param graph  that captures, or is empty
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_capture_abort(tcuda_graph *graph);

/**
 * tcuda_graph_capture_begin with the steps of torch.cuda.graph before it: waits for the stream's
 * device, empties the caches of device and pinned memory, and makes the stream and its device
 * current for this thread, so that what the thread queues is captured. Undo it by tcuda_graph_end;
 * where no graph is wanted, by tcuda_graph_capture_abort, tcuda_stream_set_current(previous) and
 * tcuda_device_set(previous_device). On failure the current stream and device are unchanged.
 * (torch.cuda.graph)
 *
 * @param graph                 an empty graph
 * @param stream                not a default one; NULL is tcuda_graph_stream of the current device
 * @param pool                  may be NULL: a new one, as in tcuda_graph_capture_begin
 * @param error_mode            TCUDA_CAPTURE_..., as in tcuda_graph_capture_begin
 * @param[out] previous         the current stream of the stream's device; borrowed
 * @param[out] previous_device  the current device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_begin(tcuda_graph *graph, tcuda_stream *stream, tcuda_mem_pool *pool,
    tcuda_capture_mode error_mode, tcuda_stream **previous, int32_t *previous_device);

/**
 * Ends what tcuda_graph_begin began: tcuda_graph_capture_end, then the previous stream and device
 * become current again, also if the capture fails. (the end of torch.cuda.graph)
 *
 * @param graph            that captures
 * @param previous         from tcuda_graph_begin; NULL leaves the stream that is current
 * @param previous_device  from tcuda_graph_begin; negative leaves the stream's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_end(tcuda_graph *graph, tcuda_stream *previous, int32_t previous_device);

/**
 * Makes a graph that keeps its template executable; again after the template was changed.
 * (torch.cuda.CUDAGraph.instantiate)
 *
 * @param graph  that keeps its template
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_instantiate(tcuda_graph *graph);

/**
 * Copies the parameters of another graph into an executable one. Both must have the same
 * operations in the same order. Cheaper than making `source` executable. If CUDA refuses with
 * TCUDA_STATUS_CUDA_ERROR, `graph` is unchanged. Both graphs hold the memory of `source` from then
 * on. (+)
 *
 * @param graph   is executable
 * @param source  keeps its template; it is not changed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_update(tcuda_graph *graph, tcuda_graph *source);

/**
 * Queues all captured work; several replays of one graph run one after the other. Random numbers
 * continue as if the work had been queued again. (torch.cuda.CUDAGraph.replay)
 *
 * @param graph   that can be launched
 * @param stream  of the graph's device, and not captured; NULL is the current one of that device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_replay(tcuda_graph *graph, tcuda_stream *stream);

/**
 * Destroys what was captured, and aborts a capture; the graph is empty again. Replays that are
 * under way continue. (torch.cuda.CUDAGraph.reset)
 *
 * @param graph  in any state
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_reset(tcuda_graph *graph);

/**
 * The stream of a device for captures: one of its pooled streams, the same each time; borrowed.
 * Memory of a pool is reused in stream order: capture graphs that share a pool on one stream.
 * (torch.cuda.graph.default_capture_stream)
 *
 * @param device       ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] stream  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_stream(int32_t device, tcuda_stream **stream);

/**
 * The pool of a captured graph, to capture others into. (torch.cuda.CUDAGraph.pool)
 *
 * @param graph      that was captured
 * @param[out] pool  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_pool(tcuda_graph *graph, tcuda_mem_pool **pool);

/**
 * The pools that hold a captured graph's memory, tcuda_graph_pool's first. On failure none is
 * made. (torch.cuda.CUDAGraph.pools)
 *
 * @param graph       that was captured
 * @param[out] pools  the caller's, to be destroyed; may be NULL if capacity is 0
 * @param capacity    length of the list
 * @param[out] count  number of pools
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_pools(tcuda_graph *graph, tcuda_mem_pool **pools, size_t capacity,
    size_t *count);

/**
 * A new pool for graphs to share. (torch.cuda.graph_pool_handle)
 *
 * @param[out] pool  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_pool_handle(tcuda_mem_pool **pool);

/**
 * Writes a template that is kept, or that a hook sees, to a file in the DOT language, with all
 * details that CUDA has.
 * (torch.cuda.CUDAGraph.debug_dump; torch.cuda.export_dot, which a hook of
 * TCUDA_GRAPH_CAPTURE_ENDED does)
 *
 * @param graph  that keeps its template, or that a hook sees
 * @param path   of the file, which is replaced
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_debug_dump(tcuda_graph *graph, const char *path);

/**
 * Registers a generator with the next capture: each replay advances it and draws new numbers, as
 * if the work had been queued again. The default generator of the captured stream's device needs
 * no call. Before tcuda_graph_capture_begin; tcuda_graph_reset forgets it.
 * (torch.cuda.CUDAGraph.register_generator_state)
 *
 * @param graph      an empty graph
 * @param generator  may be destroyed before the graph; NULL: the default one of the current device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_register_generator(tcuda_graph *graph, tcuda_generator *generator);

/**
 * The driver's handles of a captured graph; borrowed, until it is reset or destroyed.
 * (torch.cuda.CUDAGraph.raw_cuda_graph, raw_cuda_graph_exec)
 *
 * @param graph               that was captured
 * @param[out] cu_graph       the template, NULL unless it is kept or a hook sees it; may be NULL
 * @param[out] cu_graph_exec  what is launched, NULL before a kept one is executable; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_native(tcuda_graph *graph, struct CUgraph_st **cu_graph,
    struct CUgraphExec_st **cu_graph_exec);

/**
 * Is a stream being captured, by tcuda or by anything else, or is it in an invalidated capture
 * that has not ended? Creates no context. (torch.cuda.is_current_stream_capturing)
 *
 * @param stream          NULL is the current stream
 * @param[out] capturing  whether it is
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_stream_is_capturing(tcuda_stream *stream, bool *capturing);

/**
 * Begins the body of a conditional node in a capture that is under way. Each replay reads the
 * byte at `predicate` when it comes to the node, and runs the body if it is not 0. The body's work
 * is captured on a stream of its own, which is current on this thread until
 * tcuda_graph_conditional_end. Work that is queued on `stream` afterwards comes after the node.
 * Bodies may contain conditional nodes, which begin on the body's stream. Before that, the stream
 * must wait for the streams that wait for it. Allocations in a body come from the graph's pool.
 *
 * A body has kernels, copies and fills, all of the graph's device. If it has anything else, or if
 * its capture is invalidated, tcuda_graph_conditional_end fails, and then
 * tcuda_graph_capture_end with TCUDA_STATUS_CAPTURE_INVALIDATED. Random numbers are
 * TCUDA_STATUS_NOT_SUPPORTED there, and annotations are ignored. TCUDA_STATUS_NOT_SUPPORTED before
 * CUDA 12.3. (torch.cuda.CUDAGraph.begin_capture_to_if_node, begin_capture_to_while_node)
 *
 * @param graph      is being captured; on the thread that began that, unless its mode was
 *                   TCUDA_CAPTURE_RELAXED
 * @param condition  TCUDA_CONDITION_IF; or TCUDA_CONDITION_WHILE, which ends only if its body sets
 *                   the condition, by tcuda_graph_conditional_set
 * @param predicate  one byte, a bool of C, in memory that kernels of the device can read; work
 *                   before the node may write it. Valid as long as the graph is replayed
 * @param stream     captured into the graph, within a body its stream; NULL is the current one
 * @param[out] body  may be NULL; the body's stream, borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_conditional_begin(tcuda_graph *graph, tcuda_condition condition,
    const void *predicate, tcuda_stream *stream, tcuda_stream **body);

/**
 * Sets the condition of the node whose body is being captured, behind the work of a stream: each
 * time that a replay comes here, it reads the byte at `predicate`, and a loop goes on after this
 * run of its body if it is not 0. (torch.cuda.CUDAGraph.set_conditional_handle_for_current_node)
 *
 * @param graph      a body of it is being captured
 * @param predicate  as in tcuda_graph_conditional_begin; the body's work may write it
 * @param stream     the stream of the innermost body, or one that waits for it; NULL is the
 *                   current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_conditional_set(tcuda_graph *graph, const void *predicate,
    tcuda_stream *stream);

/**
 * Ends the innermost body, on the thread that began it. The stream that was current before is
 * current again, also if the body fails. (torch.cuda.CUDAGraph.end_capture_to_conditional_node)
 *
 * @param graph  a body of it is being captured
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_conditional_end(tcuda_graph *graph);

/**
 * Registers a function that is called at steps of a graph's life, or of every graph's, those of
 * graphed callables included. Hooks of all graphs run before those of the graph, both in the order
 * of their registration. tcuda_graph_reset keeps the hooks of a graph, tcuda_graph_destroy removes
 * them, tcuda_shutdown removes all. Without any hook a replay costs a load and a branch more.
 * (torch.cuda.graphs.register_graph_capture_start_hook, register_graph_capture_end_hook,
 * register_graph_instantiate_hook, register_graph_replay_start_hook,
 * register_graph_replay_end_hook, register_graph_destroy_hook; of a CUDAGraph:
 * register_capture_start_hook, register_capture_end_hook, register_post_instantiate_hook,
 * register_replay_start_hook, register_replay_end_hook, register_destroy_callback)
 *
 * @param graph          NULL: all graphs, present and future
 * @param events         TCUDA_GRAPH_..., at least one
 * @param hook           not NULL
 * @param user_data      the caller's, passed to the hook; may be NULL
 * @param destroy        called with user_data once no thread is in the hook; may be NULL
 * @param[out] observer  the caller's, to be destroyed, which removes the hook; may be NULL:
 * registered as long as the graph, or until tcuda_shutdown
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_on_event(tcuda_graph *graph, tcuda_graph_event events,
    tcuda_graph_hook_fn hook, void *user_data, tcuda_destroy_fn destroy, tcuda_observer **observer);

/**
 * Keeps an object of the host as long as what a graph captures: `destroy` is called when the graph
 * is reset or destroyed, or at tcuda_shutdown. An executable that tcuda_graph_update changed keeps
 * the objects of its source, too. (torch.cuda.CUDAGraph.retain_object)
 *
 * @param graph        not NULL
 * @param user_data    passed to destroy; may be NULL
 * @param destroy      not NULL
 * @param synchronize  1: destroy is called after all replays are complete, which the host waits
 *                     for; while a stream of them is captured, by a later tcuda_graph_reset or
 *                     tcuda_memory_empty_cache. 0: at once, so that it must not free what replays
 *                     may still use
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_retain(tcuda_graph *graph, void *user_data, tcuda_destroy_fn destroy,
    int32_t synchronize);

/**
 * The nodes and edges of a template that is kept, or that a hook sees, as JSON (ASCII):
 * {"exec_graph_id", "nodes": [...], "edges": [...]}. IDs are null before CUDA 13.1, that of the
 * executable also while there is none.
 *
 * A node: "index"; "node_type": "kernel", "memcpy", "memset", "host", "child_graph", "empty",
 * "wait_event", "event_record", "ext_semas_signal", "ext_semas_wait", "mem_alloc", "mem_free",
 * "batch_mem_op", "conditional", or CUDA's number; "tools_id", by which profilers name the node of
 * the executable: "graph_id" in its upper 32 bits, "node_id" in the lower; for kernels
 * "kernel_name", "grid_dim", "block_dim", "shared_mem_bytes" (dynamic), "parameters": [{"offset",
 * "bytes"}]; "event_ptr", CUDA's handle, or 0; "host_fn_addr", the function of
 * tcuda_stream_add_callback or CUDA's, or 0, and "host_fn_name", its symbol; "memory": {"dst",
 * "src", "bytes"} of a copy (0: an array), {"dst", "value", "element_bytes", "bytes"} of a fill,
 * {"ptr", "bytes"} of an allocation, {"ptr"} of its end; "dependencies" and "dependents", indices
 * of nodes; "annotations", the inner of two first; "child", for 16 levels of child graphs:
 * {"nodes", "edges"}. What does not apply, or is not known, is null.
 *
 * An edge: "from", "to", indices of nodes; "from_port", "to_port", "type" of its data, which are 0
 * for one of full serialisation.
 * (torch.cuda.CUDAGraph.get_graph_data; torch.cuda.export_graph_data, which a hook of
 * TCUDA_GRAPH_INSTANTIATED does; torch.cuda.graph_annotations.get_kernel_annotations)
 *
 * @param graph        that keeps its template, or that a hook sees
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_data_json(tcuda_graph *graph, char *buf, size_t len, size_t *needed);

/**
 * The nodes of tcuda_graph_data_json in the DOT language: kinds, kernels with their grids and
 * blocks, sizes of copies, and annotations. tcuda_graph_debug_dump has more of CUDA's details and
 * no annotations. (+)
 *
 * @param graph        that keeps its template, or that a hook sees
 * @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
 * @param len          room in buf, in bytes
 * @param[out] needed  length without the NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_data_dot(tcuda_graph *graph, char *buf, size_t len, size_t *needed);

/**
 * Begins an annotation: nodes that are captured behind this point of the stream, also on streams
 * that join there, have its text in tcuda_graph_data_json and tcuda_graph_data_dot. No-op unless
 * tcuda captures the stream. An annotation that is open when the capture ends, ends there.
 * (torch.cuda.graph_annotations.mark_kernels; clear_kernel_annotations is tcuda_graph_reset. The
 * host may push stacks as texts, for get_kernel_py_stacks and dump_kernel_py_stacks)
 *
 * @param stream      NULL is the current one
 * @param annotation  UTF-8, copied; not NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_annotation_push(tcuda_stream *stream, const char *annotation);

/**
 * Ends the last annotation that was begun on a stream. No-op unless tcuda captures the stream;
 * TCUDA_STATUS_INVALID_STATE if none is open on it. (the end of
 * torch.cuda.graph_annotations.mark_kernels)
 *
 * @param stream  NULL is the current one
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_annotation_pop(tcuda_stream *stream);

/**
 * The graph that tcuda captures a stream into; NULL: none, or that of a graphed callable.
 * (torch.cuda.CUDAGraph.get_currently_capturing_graph)
 *
 * @param stream      NULL is the current one
 * @param[out] graph  borrowed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graph_capturing(tcuda_stream *stream, tcuda_graph **graph);

/**
 * Warms up and captures callables, which will be called in this order. Each runs warmup_iterations
 * times on tcuda_graph_stream, backward after forward. Then each forward function runs once more
 * and is captured, then each backward function in reverse order. The inputs are the library's own,
 * like the samples, at the same address in each run. All callables share one pool. Waits for the
 * device before and after. If anything fails, nothing of it remains: with
 * TCUDA_STATUS_CALLBACK_FAILED tcuda_last_error_native is the callback's code, and what that run
 * allocated stays the host's. (torch.cuda.make_graphed_callables)
 * (torch.cuda.make_graphed_callables)
 *
 * @param callables     a list, each with its struct_size
 * @param count         1 or more
 * @param options       may be NULL: the defaults
 * @param[out] graphed  `count` handles, the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graphed_callable_create(const tcuda_callable *callables, size_t count,
    const tcuda_graphed_callable_options *options, tcuda_graphed_callable **graphed);

/**
 * Destroys a callable. Replays that are under way continue. Its outputs become invalid.
 * (the end of a callable of torch.cuda.make_graphed_callables)
 *
 * @param graphed  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_graphed_callable_destroy(tcuda_graphed_callable *graphed);

/**
 * Copies inputs into the captured ones, unless they are the same memory, and replays. The host
 * must order the calls of one callable on several streams.
 * (a call of one of torch.cuda.make_graphed_callables)
 *
 * @param graphed       from tcuda_graphed_callable_create
 * @param inputs        as the samples in number, dtype, shape and strides; in any memory that
 *                      tcuda_copy can read; may be NULL if num_inputs is 0
 * @param num_inputs    as many as were captured
 * @param stream        of the callable's device; NULL is the current one of that device
 * @param[out] outputs  borrowed views, until the callable is destroyed; the next call overwrites
 *                      what they show; may be NULL if num_outputs is 0
 * @param num_outputs   as many as were captured
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graphed_callable_call(tcuda_graphed_callable *graphed,
    const tcuda_tensor *inputs, size_t num_inputs, tcuda_stream *stream, tcuda_tensor *outputs,
    size_t num_outputs);

/**
 * Replays the backward function, after the call that it belongs to.
 * (the backward of one of torch.cuda.make_graphed_callables)
 *
 * @param graphed           from tcuda_graphed_callable_create
 * @param grad_outputs      gradients of the outputs, as those in dtype, shape and strides; may be
 *                          NULL if num_outputs is 0
 * @param num_outputs       as many as were captured
 * @param stream            of the callable's device; NULL is the current one of that device
 * @param[out] grad_inputs  borrowed views; all zero where an input has no gradient; may be NULL if
 *                          num_inputs is 0
 * @param num_inputs        as many as were captured
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_graphed_callable_call_backward(tcuda_graphed_callable *graphed,
    const tcuda_tensor *grad_outputs, size_t num_outputs, tcuda_stream *stream,
    tcuda_tensor *grad_inputs, size_t num_inputs);

/* ===================================== Collectives ============================================ */

/**
 * A copy of a tensor on each of some devices, of any type and layout. Outputs are contiguous;
 * those on the tensor's own device are the tensor itself, and copy nothing.
 *
 * All functions of this section queue their work and do not wait for it: it comes after what the
 * current streams of the devices that take part hold now, and what is queued on any of these
 * streams from then on comes after it. They may be called in a capture, which then spreads to
 * those streams; enable peer access before, if it is wanted. Tensors may be on any device, in
 * pinned or pageable memory of the host, or managed; pageable memory is read or written before the
 * call returns. Elements must be whole bytes; of types below 8 bits, neighbours are packed in
 * pairs, fours or eights. Memory that is written must overlap nothing else that the call uses.
 *
 * Outputs that the library fills in (`outs`, `out`) are to be released one by one by
 * tcuda_tensor_release, also those that are the memory of an input: releasing these frees nothing,
 * and the memory stays the input's. Memory of other outputs comes from the current stream of their
 * device, as by tcuda_malloc; on the host it is pinned, and has its values when the call returns.
 * (torch.cuda.comm.broadcast)
 *
 * @param src        read
 * @param devices    ordinals, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE; one may be there twice
 * @param count      length of both lists; 0: nothing is done
 * @param[out] outs  one for each device, in their order; the caller's, to be released
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_broadcast(const tcuda_tensor *src, const int32_t *devices, size_t count,
    tcuda_tensor *outs);

/**
 * Copies a tensor into each of some others. Outputs in pinned memory are written in stream order.
 * An output that is the source itself, with the same strides, is left unchanged.
 * (torch.cuda.comm.broadcast(out=))
 *
 * @param src    read
 * @param outs   written: of src's shape and type, of any strides that keep elements apart
 * @param count  length of the list; 0: nothing is done
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_broadcast_into(const tcuda_tensor *src, const tcuda_tensor *outs,
    size_t count);

/**
 * Copies of many tensors on each of some devices, all moved together. Outputs on the device of the
 * tensors are the tensors themselves; the others are contiguous, several in one block, which is
 * freed with the last of them. (torch.cuda.comm.broadcast_coalesced)
 *
 * @param tensors       read: all on one device, which need not be in the list, or all on the host;
 *                      of any shapes and types
 * @param num_tensors   length of the list; 0: nothing is done
 * @param devices       as in tcuda_comm_broadcast
 * @param num_devices   length of the list, 1 or more
 * @param buffer_bytes  most bytes of a block, unless one tensor has more; 0: 10 MiB
 * @param[out] outs     num_devices x num_tensors, device by device; the caller's, to be released
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_broadcast_coalesced(const tcuda_tensor *tensors, size_t num_tensors,
    const int32_t *devices, size_t num_devices, size_t buffer_bytes, tcuda_tensor *outs);

/**
 * The sum of tensors of several devices. The tensors are added one after the other, and each sum
 * is rounded to the type: first the tensor on `destination` (the last of them if there are
 * several, the first of all if there is none), then the others in their order. So the bits are the
 * same in each call and on each machine. The output has the order of strides of that first tensor;
 * the sum of one tensor that is on `destination` is the tensor itself.
 * (torch.cuda.comm.reduce_add)
 *
 * @param tensors      read: of one shape and type: integers, floats of 16 to 64 bits, bfloat16,
 *                     complex numbers of these, or bools, whose sum is "or"
 * @param count        length of the list, 1 or more
 * @param destination  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE; no tensor need be on it.
 *                     For the host the first device that has a tensor adds
 * @param[out] out     the caller's, to be released
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_reduce_add(const tcuda_tensor *tensors, size_t count, int32_t destination,
    tcuda_tensor *out);

/**
 * tcuda_comm_reduce_add into a tensor, whose device is the destination. (+)
 *
 * @param tensors  as in tcuda_comm_reduce_add
 * @param count    length of the list, 1 or more
 * @param out      written: of the same shape and type; may be one of the tensors, with the same
 *                 strides
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_reduce_add_into(const tcuda_tensor *tensors, size_t count,
    const tcuda_tensor *out);

/**
 * Many sums at once: tcuda_comm_reduce_add of the first tensors of all lists, of the second, and
 * so on. Several outputs lie in one block, which is freed with the last of them.
 * (torch.cuda.comm.reduce_add_coalesced)
 *
 * @param tensors       read: num_devices x num_tensors, list by list
 * @param num_devices   how many lists there are, 1 or more
 * @param num_tensors   how many tensors each of them has; 0: nothing is done
 * @param destination   as in tcuda_comm_reduce_add
 * @param buffer_bytes  most bytes of a block, unless one tensor has more; 0: 10 MiB
 * @param[out] outs     num_tensors of them; the caller's, to be released
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_reduce_add_coalesced(const tcuda_tensor *tensors, size_t num_devices,
    size_t num_tensors, int32_t destination, size_t buffer_bytes, tcuda_tensor *outs);

/**
 * Splits a tensor along a dimension, one piece for each device. A piece of the tensor's own device
 * is a view of the tensor; others are dense, with the tensor's order of strides.
 * (torch.cuda.comm.scatter)
 *
 * @param tensor       read; of 1 dimension or more
 * @param devices      as in tcuda_comm_broadcast
 * @param chunk_sizes  size of each piece along dim, which together are the tensor's; may be NULL:
 *                     all of ceil(size / count) but the last, and if these are fewer than count,
 *                     the outs that are left over are zeroed: all of the struct is 0
 * @param count        length of the lists, 1 or more
 * @param dim          the dimension; negative ones count from the end
 * @param streams      for each piece a stream of its device instead of the current one, to copy to
 *                     it and for its memory; may be NULL, and so may each of them: the current one
 * @param[out] outs    one for each device; the caller's, to be released
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_scatter(const tcuda_tensor *tensor, const int32_t *devices,
    const int64_t *chunk_sizes, size_t count, int32_t dim, tcuda_stream *const *streams,
    tcuda_tensor *outs);

/**
 * Splits a tensor along a dimension into others, whose sizes say how.
 * (torch.cuda.comm.scatter(out=))
 *
 * @param tensor   read; of 1 dimension or more
 * @param outs     written: of the tensor's type and shape but for dim, where together they have
 *                 its size
 * @param count    length of the lists, 1 or more
 * @param dim      the dimension; negative ones count from the end
 * @param streams  as in tcuda_comm_scatter; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_scatter_into(const tcuda_tensor *tensor, const tcuda_tensor *outs,
    size_t count, int32_t dim, tcuda_stream *const *streams);

/**
 * Joins tensors along a dimension. The output is contiguous, or channels last where all tensors
 * are. (torch.cuda.comm.gather)
 *
 * @param tensors      read: of one type and of one shape but for dim; those without dimensions
 *                     count as if they had one, of size 1
 * @param count        length of the list, 1 or more
 * @param dim          the dimension; negative ones count from the end
 * @param destination  ordinal, TCUDA_CURRENT_DEVICE or TCUDA_CPU_DEVICE. -1 is the current device,
 *                     like None in torch; older versions of torch.cuda.comm.gather wrote -1 for
 *                     the CPU
 * @param[out] out     the caller's, to be released
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_gather(const tcuda_tensor *tensors, size_t count, int32_t dim,
    int32_t destination, tcuda_tensor *out);

/**
 * Joins tensors along a dimension into another. (torch.cuda.comm.gather(out=))
 *
 * @param tensors  as in tcuda_comm_gather
 * @param count    length of the list, 1 or more
 * @param dim      the dimension; negative ones count from the end
 * @param out      written: of the shape that they have together, and of their type
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_comm_gather_into(const tcuda_tensor *tensors, size_t count, int32_t dim,
    const tcuda_tensor *out);

/* ===================================== Communicators ========================================== */

/** One rank of a group of processes and devices that work together by NCCL. */
typedef struct tcuda_communicator tcuda_communicator;

/** Identifies a group. Plain data: send it to the other processes, by a pipe, a file or MPI. */
typedef struct tcuda_unique_id {
    uint8_t bytes[128]; /**< NCCL's own. */
} tcuda_unique_id;

/** How elements are combined: TCUDA_REDUCE_... */
typedef int32_t tcuda_reduce_op;
#define TCUDA_REDUCE_SUM 0  /**< Their sum; of bool "or". */
#define TCUDA_REDUCE_PROD 1 /**< Their product; of bool "and". */
#define TCUDA_REDUCE_MAX 2  /**< The largest. */
#define TCUDA_REDUCE_MIN 3  /**< The smallest. */

/**
 * Version of NCCL: of the library that the process has loaded, else of libnccl.so.2, or of the one
 * that TCUDA_NCCL_PATH names. Does not initialise the library. (torch.cuda.nccl.version)
 *
 * @param[out] major, minor, patch  2, 27, 3; TCUDA_STATUS_NO_LIBRARY where there is none
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nccl_version(int32_t *major, int32_t *minor, int32_t *patch);

/**
 * Creates the id of a new group: one process calls this and sends the id to the others. That
 * process must live until all have joined. Does not initialise CUDA, but threads that NCCL starts
 * do not exist in a forked child. (torch.cuda.nccl.unique_id)
 *
 * @param[out] id  for tcuda_communicator_init_rank, on each rank
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_unique_id(tcuda_unique_id *id);

/**
 * Joins a group; returns when all of its ranks have joined. Other calls of the process continue
 * meanwhile. tcuda_shutdown does not wait for it: then this call fails with
 * TCUDA_STATUS_INVALID_STATE once NCCL returns. Two ranks cannot have the same device. Between
 * devices of ranks of one process, peer access is enabled where the machine has it.
 * (torch.cuda.nccl.init_rank)
 *
 * @param id                 from tcuda_communicator_unique_id, of any process
 * @param num_ranks          how many join, in all processes
 * @param rank               0 to num_ranks - 1, each once
 * @param device             ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] communicator  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_init_rank(const tcuda_unique_id *id, int32_t num_ranks,
    int32_t rank, int32_t device, tcuda_communicator **communicator);

/**
 * Creates a group of devices of this process: rank i is devices[i]. Its collectives are queued by
 * one thread between tcuda_communicator_group_begin and _end, or by one thread for each device.
 * (+)
 *
 * @param devices             `count` ordinals, each once
 * @param count               number of ranks, 1 or more
 * @param[out] communicators  room for `count`, each the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_init_all(const int32_t *devices, size_t count,
    tcuda_communicator **communicators);

/**
 * Waits for this rank's queued work, then leaves the group. If that work failed, the rank is
 * aborted instead, and the status is still TCUDA_STATUS_OK. Meanwhile other calls with the
 * communicator fail with TCUDA_STATUS_INVALID_STATE, except tcuda_communicator_abort, which ends
 * the wait. Destroy graphs that captured its work before. (+)
 *
 * @param communicator  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_communicator_destroy(tcuda_communicator *communicator);

/**
 * Aborts work that hangs, for example because another rank has ended; any thread may call it.
 * Queued work ends with unknown results, and calls that wait for other ranks return an error.
 * Afterwards only tcuda_communicator_destroy accepts the communicator. The other ranks have to
 * abort as well. A call that hangs returns once NCCL notices the abort, which may take a while;
 * with NCCL_COMM_BLOCKING=0 in the environment it returns at once, and each call costs more. No-op
 * on an aborted communicator. (+)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_abort(tcuda_communicator *communicator);

/**
 * OK while the communicator has not failed, also while work is under way. Else the failure:
 * TCUDA_STATUS_NCCL_ERROR, TCUDA_STATUS_PEER_GONE where another process has ended or cannot be
 * reached, or TCUDA_STATUS_INVALID_STATE after an abort. Queued work may then never end: abort.
 * (+)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_query(tcuda_communicator *communicator);

/**
 * From now on this thread's collectives are collected, until tcuda_communicator_group_end queues
 * all of them at once. So one thread can use several communicators, and send and receive both
 * ways. Groups nest: only the outermost end queues. (+)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_group_begin(void);

/**
 * Ends a group. The group is closed whatever the status; if a call in it failed, nothing of it was
 * queued, and the status is TCUDA_STATUS_INVALID_STATE, as without a group. (+)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_group_end(void);

/**
 * Reduces over all ranks, element by element; the result is on every rank. All ranks queue the
 * same collectives of a group in the same order, with equal numbers of elements. They are queued
 * on a stream, and graphs capture them like other work. All tensors are contiguous, and on the
 * communicator's device. Reductions are of float16, 32 and 64, bfloat16, int8, 32 and 64, uint8,
 * 32 and 64, bool, and sums of complex numbers; the order in which NCCL adds depends on size and
 * machine. (torch.cuda.nccl.all_reduce)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param input         read: contiguous, on the communicator's device
 * @param output        of the type and number of elements of input; may be input, in place
 * @param op            TCUDA_REDUCE_...
 * @param stream        of the communicator's device; NULL is the current one of that device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_all_reduce(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, tcuda_reduce_op op,
    tcuda_stream *stream);

/**
 * Copies the root's elements, of any type, to all ranks. (torch.cuda.nccl.broadcast)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param input         read on root; elsewhere it is ignored and may be NULL
 * @param output        written on every rank; on root it may be input
 * @param root          0 to num_ranks - 1
 * @param stream        NULL is the current one of the communicator's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_broadcast(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, int32_t root, tcuda_stream *stream);

/**
 * tcuda_communicator_all_reduce with the result on one rank. (torch.cuda.nccl.reduce)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param input         read: contiguous, of as many elements on each rank
 * @param output        written on root; elsewhere it is ignored and may be NULL
 * @param op            TCUDA_REDUCE_...
 * @param root          0 to num_ranks - 1
 * @param stream        NULL is the current one of the communicator's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_reduce(tcuda_communicator *communicator, const tcuda_tensor *input,
    const tcuda_tensor *output, tcuda_reduce_op op, int32_t root, tcuda_stream *stream);

/**
 * Concatenates the elements of all ranks, of any type, in the order of ranks, on each of them.
 * (torch.cuda.nccl.all_gather)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param input         read: contiguous, of as many elements on each rank
 * @param output        num_ranks times the elements of input; input may be the rank's own part of
 *                      it
 * @param stream        NULL is the current one of the communicator's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_all_gather(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, tcuda_stream *stream);

/**
 * Reduces over all ranks, and gives each rank its part of the result, in the order of ranks.
 * (torch.cuda.nccl.reduce_scatter)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param input         num_ranks times the elements of output
 * @param output        may be the rank's own part of input
 * @param op            TCUDA_REDUCE_...
 * @param stream        NULL is the current one of the communicator's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_reduce_scatter(tcuda_communicator *communicator,
    const tcuda_tensor *input, const tcuda_tensor *output, tcuda_reduce_op op,
    tcuda_stream *stream);

/**
 * Sends elements of any type to a rank, which receives as many. Messages between two ranks arrive
 * in order. Messages that go both ways, or round a ring, must be one group on each rank, or they
 * wait for ever. (+)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param input         read: contiguous
 * @param peer          0 to num_ranks - 1
 * @param stream        NULL is the current one of the communicator's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_send(tcuda_communicator *communicator, const tcuda_tensor *input,
    int32_t peer, tcuda_stream *stream);

/**
 * Receives what a rank sends. (+)
 *
 * @param communicator  from tcuda_communicator_init_rank or _init_all
 * @param output        written: contiguous, of as many elements as are sent
 * @param peer          0 to num_ranks - 1
 * @param stream        NULL is the current one of the communicator's device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_communicator_recv(tcuda_communicator *communicator, const tcuda_tensor *output,
    int32_t peer, tcuda_stream *stream);

/* ===================================== NVTX and telemetry ===================================== */

/**
 * Marks an instant of this thread. A tool that reads NVTX names its library in
 * NVTX_INJECTION64_PATH, as NVIDIA's tools do; without one nothing is sent, but ranges are
 * counted. Marks and ranges are of the default domain. Those of threads need no GPU and no
 * initialised library, and work in a forked child. (torch.cuda.nvtx.mark)
 *
 * @param message  passed to the tool unchanged
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_mark(const char *message);

/**
 * Opens a range of this thread, inside those that it has open.
 * (torch.cuda.nvtx.range_push, torch.cuda.nvtx.range)
 *
 * @param message     UTF-8, copied
 * @param[out] depth  of the range, from 0; counts the ranges opened here; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_range_push(const char *message, int32_t *depth);

/**
 * Ends the range that this thread opened last; TCUDA_STATUS_INVALID_STATE if it has none open.
 * (torch.cuda.nvtx.range_pop)
 *
 * @param[out] depth  of the range that ends; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_range_pop(int32_t *depth);

/**
 * Opens a range that any thread may end, in any order. (torch.cuda.nvtx.range_start)
 *
 * @param message  UTF-8, copied
 * @param[out] id  the tool's number of the range
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_range_start(const char *message, uint64_t *id);

/**
 * Ends a range of tcuda_nvtx_range_start, not one of a stream. (torch.cuda.nvtx.range_end)
 *
 * @param id  of tcuda_nvtx_range_start; the tool ignores others
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_range_end(uint64_t id);

/**
 * Opens a range when the stream gets there, by a host function, as tcuda_stream_add_callback
 * queues it; in a capture of a tcuda_graph, at each replay. Nothing is queued while no tool is
 * attached. (torch.cuda.nvtx._device_range_start)
 *
 * @param message  UTF-8, copied
 * @param stream   NULL is the current stream
 * @param[out] id  for tcuda_nvtx_device_range_end
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_device_range_start(const char *message, tcuda_stream *stream, uint64_t *id);

/**
 * Ends a range of a stream when the stream gets there; it may be another stream than that of the
 * start; the two should be ordered. (torch.cuda.nvtx._device_range_end)
 *
 * @param id      of tcuda_nvtx_device_range_start, once; numbers are forgotten at tcuda_shutdown
 * @param stream  NULL is the current stream
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_nvtx_device_range_end(uint64_t id, tcuda_stream *stream);

/**
 * Makes the attached profiler record from now on, as cudaProfilerStart: "nsys profile
 * --capture-range=cudaProfilerApi" waits for it. Without a profiler a no-op.
 * (torch.cuda.profiler.start)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_profiler_start(void);

/** Makes the attached profiler stop, as cudaProfilerStop. (torch.cuda.profiler.stop) */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_profiler_stop(void);

/**
 * Share of the last second or so in which kernels ran. The values of this and the next functions
 * come from the driver's management library (NVML). It is opened at the first call, and finds the
 * device whatever CUDA_VISIBLE_DEVICES is. TCUDA_STATUS_NO_LIBRARY without it;
 * TCUDA_STATUS_NOT_SUPPORTED where the GPU has no such value, as parts of a GPU (MIG) have no
 * utilization; TCUDA_STATUS_NVML_ERROR where it fails, or refuses access. The simulated machine
 * returns its own activity, and plausible values for what it does not have (heat, power, clocks).
 * (torch.cuda.utilization)
 *
 * @param device        ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] percent  0 to 100
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_monitor_utilization(int32_t device, uint32_t *percent);

/**
 * Share of the last second or so in which the device's memory was read or written.
 * (torch.cuda.memory_usage)
 *
 * @param device        ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] percent  0 to 100
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_monitor_memory_usage(int32_t device, uint32_t *percent);

/**
 * Temperature of the die. (torch.cuda.temperature)
 *
 * @param device        ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] celsius  degrees Celsius
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_monitor_temperature_c(int32_t device, int32_t *celsius);

/**
 * Power of the board, also for a part of a GPU. (torch.cuda.power_draw)
 *
 * @param device           ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] milliwatts  milliwatts
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_monitor_power_draw_mw(int32_t device, uint32_t *milliwatts);

/**
 * Clock of the multiprocessors. (torch.cuda.clock_rate)
 *
 * @param device          ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] megahertz  megahertz
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_monitor_clock_rate_mhz(int32_t device, uint32_t *megahertz);

/**
 * Memory in use by all processes, and by the driver. (torch.cuda.device_memory_used)
 *
 * @param device      ordinal, or TCUDA_CURRENT_DEVICE
 * @param[out] bytes  bytes
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_monitor_memory_used(int32_t device, uint64_t *bytes);

/* ===================================== Jiterator and kernels ================================== */

#define TCUDA_SCALAR_DOUBLE 0  /**< tcuda_scalar.kind: real, a double. */
#define TCUDA_SCALAR_INT 1     /**< integer. */
#define TCUDA_SCALAR_BOOL 2    /**< integer, 0 or 1. */
#define TCUDA_SCALAR_COMPLEX 3 /**< real and imaginary, doubles. */

#define TCUDA_IMAGE_PTX 1     /**< A text of PTX. */
#define TCUDA_IMAGE_CUBIN 2   /**< Machine code. */
#define TCUDA_IMAGE_FATBIN 3  /**< PTX and machine code for several architectures. */
#define TCUDA_IMAGE_OBJECT 4  /**< A host's object file with relocatable device code. */
#define TCUDA_IMAGE_LIBRARY 5 /**< A host's archive of such files. */
#define TCUDA_IMAGE_LTOIR 6   /**< LTO IR, as of nvcc -dlto or nvrtcGetLTOIR. */

/** How a kernel accesses the memory that an argument points to: not at all, or it is no pointer. */
#define TCUDA_ACCESS_NONE 0
#define TCUDA_ACCESS_READ 1       /**< Reads. */
#define TCUDA_ACCESS_WRITE 2      /**< Writes. */
#define TCUDA_ACCESS_READ_WRITE 3 /**< Both. */

/** An elementwise function, for tensors of any type and shape. (torch.cuda.jiterator) */
typedef struct tcuda_jit tcuda_jit;
typedef struct tcuda_kernel tcuda_kernel; /**< A kernel in CUDA C++. */

/**
 * An extra argument, by name. Its kind is the type of the argument that is passed; it is converted
 * to the declared type of the parameter, for example T.
 */
typedef struct tcuda_scalar {
    const char *name; /**< Must be a valid name of a parameter of the function. */
    int32_t kind;     /**< TCUDA_SCALAR_... */
    int64_t integer;  /**< The value of an INT or BOOL. */
    double real;      /**< The value of a DOUBLE; the real part of a COMPLEX. */
    double imaginary; /**< The imaginary part of a COMPLEX. */
} tcuda_scalar;

/** Options of an elementwise function. */
typedef struct tcuda_jit_options {
    size_t struct_size; /**< From TCUDA_INIT. */
    /**
     * The extra parameters, in the order in which they follow the tensors, with their defaults;
     * may be NULL if there are none. At most 32.
     */
    const tcuda_scalar *scalars;
    size_t num_scalars; /**< Number of them. */
} tcuda_jit_options;

/** An image to link. */
typedef struct tcuda_kernel_image {
    const void *data; /**< Its bytes. */
    size_t bytes;     /**< Their number; of PTX with or without a NUL at the end. */
    const char *name; /**< Its name in messages; may be NULL. */
    int32_t kind;     /**< TCUDA_IMAGE_... */
} tcuda_kernel_image;

/** Options of the compilation of a kernel. */
typedef struct tcuda_kernel_options {
    size_t struct_size; /**< From TCUDA_INIT. */
    /**
     * Options of NVRTC, "-I...", "-D..."; may be NULL if there are none. The architecture is the
     * device's, and the language is C++17 unless an option names another.
     */
    const char *const *flags;
    size_t num_flags; /**< Number of them; at most 256. */
    /**
     * Images with functions that the source uses (declared extern), or with the kernel itself; may
     * be NULL if there are none. They are copied. (cuda.core: Linker)
     */
    const tcuda_kernel_image *images;
    size_t num_images; /**< Number of them; at most 256. */
    /**
     * 1: link-time optimisation of source and images, by nvJitLink; an image of
     * TCUDA_IMAGE_LTOIR implies it. Else 0. On the simulated machine all images are LTO IR then.
     */
    int32_t lto;
} tcuda_kernel_options;

/** Options of a launch. */
typedef struct tcuda_launch_options {
    size_t struct_size; /**< From TCUDA_INIT. */
    uint32_t grid[3];   /**< Blocks in x, y and z; 0: 1. */
    uint32_t block[3];  /**< Threads of a block in x, y and z; 0: 1. */
    /**
     * Bytes of dynamic shared memory of each block. Together with the shared memory that the
     * kernel declares, at most tcuda_device_info.shared_memory_per_block_optin_bytes of the
     * device, 227 KiB on an H100.
     */
    uint32_t shared_bytes;
    /** TCUDA_ACCESS_... of each argument, for tools that record accesses; may be NULL. */
    const int32_t *accesses;
    /**
     * Blocks of a cluster in x, y and z, which divide those of the grid; 0: 1, and all 0: no
     * cluster, or the one that the code names. Compute capability 9.0; at most 8 blocks in all, or
     * tcuda_kernel_info.max_cluster_blocks. (cuda.core: cluster)
     */
    uint32_t cluster[3];
    /**
     * 1: all blocks run at the same time, so that they can wait for each other; the grid has at
     * most tcuda_kernel_info.max_cooperative_blocks. Else 0. (cuda.core: is_cooperative)
     */
    int32_t cooperative;
    /**
     * 1: the kernel may begin before the kernel before it in the stream has ended; it uses that
     * kernel's results only after griddepcontrol.wait (programmatic dependent launch). Else 0.
     * Without effect below compute capability 9.0.
     */
    int32_t programmatic;
    /** In the range of tcuda_stream_priority_range, lower is more urgent; 0: the stream's. */
    int32_t priority;
    /**
     * How much of a multiprocessor's first-level cache is shared memory if possible: 1 to 100; 0:
     * as the driver chooses. CUDA 12.5.
     */
    int32_t shared_carveout_percent;
} tcuda_launch_options;

/** What a kernel needs, and how many of its blocks run at the same time. */
typedef struct tcuda_kernel_info {
    size_t struct_size; /**< From TCUDA_INIT. */
    int32_t registers;  /**< Registers of a thread. */
    /** Most threads of a block: by the registers, or as the code says (__launch_bounds__). */
    int32_t max_threads_per_block;
    uint64_t static_shared_bytes; /**< Shared memory of a block that the code declares. */
    /** Most dynamic shared memory of a block: tcuda_launch_options.shared_bytes. */
    uint64_t max_dynamic_shared_bytes;
    uint64_t local_bytes;    /**< Local memory of a thread. */
    uint64_t constant_bytes; /**< Constant memory that the code declares. */
    int32_t ptx_version;     /**< Architecture of the code's PTX; 90 is 9.0. */
    int32_t binary_version;  /**< Architecture of the machine code; 90 is 9.0. */
    /** Blocks of a cluster in x, y and z that the code names (__cluster_dims__); 0: none. */
    uint32_t required_cluster[3];
    /**
     * Blocks with the block and shared_bytes of the options that a multiprocessor runs at the same
     * time; 0: they are too large.
     */
    uint32_t max_blocks_per_multiprocessor;
    /**
     * Such blocks that the multiprocessors of the stream run at the same time: the largest grid of
     * a cooperative launch.
     */
    uint64_t max_cooperative_blocks;
    /** Most such blocks of a cluster; 0: the device has no clusters. */
    uint32_t max_cluster_blocks;
    /**
     * Clusters of the options, or of the code, that the multiprocessors of the stream run at the
     * same time; 0: there is no cluster, or it is too large.
     */
    uint32_t max_active_clusters;
    /**
     * Threads of a block with which most threads of the device run, with the shared_bytes of the
     * options.
     */
    uint32_t suggested_block_threads;
    /** Number of such blocks that the device runs at the same time. */
    uint32_t suggested_grid_blocks;
} tcuda_kernel_info;

/**
 * Creates a function from PyTorch's code string: one template with a type T, "template <typename
 * T> T add(T x, T y, T alpha) { return x + alpha * y; }". Functions that it calls may come before
 * it: the last one is the function. It takes one element of each input, then the extra arguments,
 * and returns the element of the output. T is the common type of the inputs, or float where that
 * is float16, bfloat16 or float8. Nothing is compiled yet, and the library is not initialised.
 * (torch.cuda.jiterator._create_jit_fn)
 *
 * @param code      CUDA C++ without includes, at most 1 MiB; mathematical functions as std::sin or
 *                  ::sin. It may use any names, except tcuda and std, and except macros
 * @param options   may be NULL: no extra arguments
 * @param[out] jit  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_jit_create(const char *code, const tcuda_jit_options *options, tcuda_jit **jit);

/**
 * tcuda_jit_create for a function whose last parameters are its outputs, T &. It returns void, or
 * a value that is ignored. (torch.cuda.jiterator._create_multi_output_jit_fn)
 *
 * @param code         as for tcuda_jit_create
 * @param num_outputs  1 to 8
 * @param options      may be NULL: no extra arguments
 * @param[out] jit     the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_jit_create_multi(const char *code, int32_t num_outputs,
    const tcuda_jit_options *options, tcuda_jit **jit);

/**
 * Destroys a function; its work that is under way continues. Compiled code stays until
 * tcuda_shutdown, for graphs, and for a function of the same code.
 * (the end of a function of torch.cuda.jiterator)
 *
 * @param jit  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_jit_destroy(tcuda_jit *jit);

/**
 * Computes the outputs. The inputs broadcast, and are promoted to a common type as in PyTorch. The
 * first call for new types or strides compiles a kernel, which takes tens of milliseconds, or
 * loads it from disk. Tensors without elements: nothing is queued. TCUDA_STATUS_COMPILE_ERROR
 * where the code is invalid for these types, TCUDA_STATUS_NO_LIBRARY without NVRTC.
 * (the call of a function of torch.cuda.jiterator)
 *
 * @param jit          from tcuda_jit_create or tcuda_jit_create_multi
 * @param inputs       1 to 8, all on one device, of bool, integers of 8 to 64 bits, float8 e4m3fn
 *                     and e5m2, float16 to float64, bfloat16, complex of 32 to 128 bits; addresses
 *                     are multiples of an element's size, and strides not negative where there are
 *                     elements. At most 25 dimensions, after those that can be merged are merged
 * @param num_inputs   1 to 8
 * @param scalars      instead of their defaults, by name; may be NULL if num_scalars is 0
 * @param num_scalars  how many scalars there are
 * @param outputs      as many as the function has, on that device, of the broadcast shape and the
 *                     common type of the inputs. An output may be an input, but must not overlap
 *                     one partly, and no two of its elements may have the same address
 * @param num_outputs  as many as the function has
 * @param stream       NULL is the current stream of that device
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_jit_call(tcuda_jit *jit, const tcuda_tensor *inputs, size_t num_inputs,
    const tcuda_scalar *scalars, size_t num_scalars, const tcuda_tensor *outputs,
    size_t num_outputs, tcuda_stream *stream);

/**
 * Compiles a kernel for the current device with NVRTC, or loads it from disk; for other devices
 * that is done at its first launch there. Headers are read each time: an edited one gives another
 * kernel. TCUDA_STATUS_COMPILE_ERROR where the source is wrong: tcuda_last_error has the
 * compiler's messages, with lines of the source; where images do not link, the linker's.
 * TCUDA_STATUS_NO_LIBRARY without NVRTC, and for LTO without nvJitLink (CUDA 12.0, the path in
 * TCUDA_NVJITLINK_PATH if that is set). (torch.cuda._compile_kernel)
 *
 * @param source       CUDA C++; functions without a specifier are device functions; may be NULL if
 *                     an image has the kernel, under `name`
 * @param name         a kernel, "add", or an instance of a template, "scale<float>"; ASCII,
 * without
 *                     quotes and newlines
 * @param options      may be NULL
 * @param[out] kernel  the caller's, to be destroyed
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_kernel_compile(const char *source, const char *name,
    const tcuda_kernel_options *options, tcuda_kernel **kernel);

/**
 * Destroys a kernel; its work that is under way continues. Compiled code stays until
 * tcuda_shutdown, for graphs, and for a kernel of the same source. (+)
 *
 * @param kernel  may be NULL: no-op
 */
TCUDA_API
tcuda_status tcuda_kernel_destroy(tcuda_kernel *kernel);

/**
 * Queues a kernel. TCUDA_STATUS_CUDA_ERROR for a grid or blocks larger than the device supports;
 * TCUDA_STATUS_INVALID_ARGUMENT for a cluster that is too large or does not divide the grid, and
 * for a cooperative launch whose blocks do not all fit; TCUDA_STATUS_NOT_SUPPORTED for a cluster
 * below compute capability 9.0. If the kernel accesses invalid memory, calls give
 * TCUDA_STATUS_DEVICE_LOST from then on. (a call of a kernel of torch.cuda._compile_kernel)
 *
 * @param kernel    from tcuda_kernel_compile
 * @param options   may be NULL: one thread
 * @param args      args[i] points to the i-th argument, which is read before the call returns; may
 *                  be NULL if num_args is 0
 * @param num_args  as many as the kernel has parameters, at most 64; else
 *                  TCUDA_STATUS_INVALID_ARGUMENT, where the driver can report it (CUDA 12.4)
 * @param stream    NULL is the current stream
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_kernel_launch(tcuda_kernel *kernel, const tcuda_launch_options *options,
    void *const *args, size_t num_args, tcuda_stream *stream);

/**
 * What a kernel needs of the stream's device, and how many blocks of a launch run there at the
 * same time. Queues nothing, also while the stream is captured; compiles the kernel if it has not
 * been on this device. Fails as tcuda_kernel_launch where the options are wrong. (+)
 *
 * @param kernel        from tcuda_kernel_compile
 * @param options       of the launch, whose grid and accesses are not read; may be NULL: one
 *                      thread
 * @param stream        NULL is the current stream; one of a green context has its multiprocessors
 * @param[in,out] info  start from TCUDA_INIT(tcuda_kernel_info)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_kernel_properties(tcuda_kernel *kernel, const tcuda_launch_options *options,
    tcuda_stream *stream, tcuda_kernel_info *info);

/* ===================================== Stream sanitizer ======================================= */

/** An access to memory by one operation. */
typedef struct tcuda_access {
    const void *ptr; /**< The first byte. */
    /**
     * Length from the first byte to the last; between rows, or strided elements, there may be
     * other bytes.
     */
    size_t bytes;
    /** The operation, "tcuda_copy"; "tcuda_graph_replay: tcuda_copy" in the launch of a graph. */
    const char *label;
    const char *frames; /**< The host's frames, one line each, or "". */
    int64_t stream_id;  /**< As tcuda_stream_id returns it. */
    uint64_t sequence;  /**< Number of the operation. */
    int32_t device;     /**< The stream's device. */
    int32_t mode;       /**< TCUDA_ACCESS_... */
} tcuda_access;

/** Two unordered accesses. The texts belong to the library, and stay valid until tcuda_shutdown. */
typedef struct tcuda_sanitizer_report {
    size_t struct_size;     /**< From TCUDA_INIT. */
    const void *ptr;        /**< The first byte of the overlap. */
    size_t bytes;           /**< Length of the overlap. */
    tcuda_access current;   /**< The access that was queued later. */
    tcuda_access previous;  /**< The access that was queued earlier. */
    const char *allocation; /**< The block, and the host's frames at its allocation; or "". */
    /** The missing order of the two: "stream 35 must wait for stream 3 after tcuda_copy ...". */
    const char *missing;
} tcuda_sanitizer_report;

/**
 * Receives each report when it is found, on the thread that queued the later access, with no lock
 * held. It may call tcuda, except tcuda_shutdown.
 */
typedef void (*tcuda_report_fn)(void *user_data, const tcuda_sanitizer_report *report);

/** Options of the sanitizer; zeros are defaults. */
typedef struct tcuda_sanitizer_options {
    size_t struct_size; /**< From TCUDA_INIT. */
    /** The first so many are kept and passed to report, the others are only counted; 0: 1000. */
    size_t max_reports;
    /** Receives reports; may be NULL: then they are lines of the log, at level warning. */
    tcuda_report_fn report;
    /** Returns the host's frames of each operation and allocation, on its thread; may be NULL. */
    tcuda_frames_fn frames;
    void *user_data; /**< Passed to report, frames and destroy. */
    /** Called when the sanitizer is turned off, or enabled again; may be NULL. */
    tcuda_destroy_fn destroy;
} tcuda_sanitizer_options;

/**
 * Begins to record the accesses of streams to memory, and reports unordered accesses: two to the
 * same bytes, of which one writes, without an event, wait or synchronisation of the program
 * between them. Whether they overlapped in time does not matter. Work that is queued through tcuda
 * is recorded; report other kernels by tcuda_sanitizer_access. Work that was queued before is not
 * known. A second call begins anew: earlier reports are dropped. TCUDA_SANITIZER=1 in the
 * environment does this at initialisation, unless the host has turned it on or off before;
 * tcuda_shutdown ends it. Without a report function reports are warnings in the log, which go to
 * stderr if no log callback was set. (torch.cuda._sanitizer.enable_cuda_sanitizer)
 *
 * @param options  may be NULL: all zero
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sanitizer_enable(const tcuda_sanitizer_options *options);

/** Turns the sanitizer off; reports are dropped. No-op if it is off. (+) */
TCUDA_API
tcuda_status tcuda_sanitizer_disable(void);

/**
 * Records an access by a kernel that the host launched itself; call it right after the launch.
 * No-op while the sanitizer is off. (+)
 *
 * @param stream  NULL is the current stream
 * @param ptr     memory of any device, or pinned memory; may be NULL if bytes is 0
 * @param bytes   length of the range; 0: nothing is recorded
 * @param mode    TCUDA_ACCESS_READ, _WRITE or _READ_WRITE
 * @param label   its name in reports; may be NULL: "kernel". Copied; each different one takes host
 *                memory until tcuda_shutdown
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sanitizer_access(tcuda_stream *stream, const void *ptr, size_t bytes,
    int32_t mode, const char *label);

/**
 * Number of reports since tcuda_sanitizer_enable, also those that are not kept; 0 while it is off.
 * (+)
 *
 * @param[out] count  0 or more
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sanitizer_report_count(size_t *count);

/**
 * One of the reports that are kept. The struct is the host's, its texts are the library's.
 * (torch.cuda._sanitizer.UnsynchronizedAccessError)
 *
 * @param index           0 is the oldest; one that is not kept is TCUDA_STATUS_INVALID_ARGUMENT
 * @param[in,out] report  start from TCUDA_INIT(tcuda_sanitizer_report)
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sanitizer_report_get(size_t index, tcuda_sanitizer_report *report);

/**
 * A report as a text of several lines: both accesses with their frames, where the memory was
 * allocated, and the missing order. (the text of torch.cuda._sanitizer.UnsynchronizedAccessError)
 *
 * @param index        0 is the oldest
 * @param[out] buf     may be NULL if len is 0
 * @param len          room in buf, in bytes
 * @param[out] needed  length without NUL; may be NULL
 */
TCUDA_NODISCARD TCUDA_API
tcuda_status tcuda_sanitizer_report_text(size_t index, char *buf, size_t len, size_t *needed);

#ifdef __cplusplus
}
#endif

#endif /* TCUDA_H */
