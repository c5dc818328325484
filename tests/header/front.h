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

#define TCUDA_VERSION_MAJOR @MAJOR@
#define TCUDA_VERSION_MINOR @MINOR@
#define TCUDA_VERSION_PATCH @PATCH@
#define TCUDA_VERSION @VERSION@ /* major * 1000000 + minor * 1000 + patch */

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
