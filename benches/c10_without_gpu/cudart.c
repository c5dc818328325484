/* A CUDA runtime without a GPU: the functions that PyTorch's libc10_cuda.so calls.
 *
 * Memory is a counter of addresses and of bytes in use, so that the allocator meets the limits of
 * STUB_DEVICES (default: 1) devices of STUB_TOTAL_MB (default: 141 GiB) and lays out its blocks as
 * on one; nothing is ever read or written there. Streams and events complete at once, but while
 * stub_hold_events(1) holds, no query finds an event complete. */

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cuda_runtime_api.h maps these to versioned names; libc10_cuda.so asks for the plain ones too. */
#undef cudaStreamGetCaptureInfo
#undef cudaGetDeviceProperties
#undef cudaGraphNodeGetDependencies

enum { PAGE = 2 << 20, MAX_BLOCKS = 1 << 16, MAX_DEVICES = 16 };

static const size_t GAP = (size_t)1 << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t total_bytes = (size_t)141 << 30, used_bytes[MAX_DEVICES];
static const size_t first_block = 0x700000000000;
static size_t next_range = 0x600000000000;
/* In the order of their addresses, which are the lowest that are free. */
static struct { size_t address, bytes; int device; } blocks[MAX_BLOCKS];
static int num_blocks, num_devices = 1, events_are_held;
static __thread int current_device;

__attribute__((constructor)) static void read_environment(void)
{
    const char *megabytes = getenv("STUB_TOTAL_MB");
    if (megabytes != NULL)
        total_bytes = strtoul(megabytes, NULL, 10) << 20;
    const char *devices = getenv("STUB_DEVICES");
    if (devices != NULL)
        num_devices = (int)strtoul(devices, NULL, 10);
    if (num_devices < 1 || num_devices > MAX_DEVICES)
        num_devices = 1;
}

/* For tests: not a part of the runtime. */
void stub_hold_events(int held)
{
    events_are_held = held;
}

/* ---- Devices and errors ---- */

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = num_devices;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    (void)device;
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "no GPU");
    properties->major = 9;
    properties->totalGlobalMem = total_bytes;
    properties->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *possible, int device, int peer)
{
    (void)device, (void)peer;
    *possible = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    (void)error;
    return "stub";
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "stub";
}

/* ---- Memory ---- */

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&lock);
    const int device = current_device;
    const int fits = used_bytes[device] + bytes <= total_bytes && num_blocks < MAX_BLOCKS;
    if (fits) {
        size_t address = first_block;
        int at = 0;
        while (at < num_blocks && blocks[at].address - address < bytes) {
            address = blocks[at].address + blocks[at].bytes;
            at++;
        }
        memmove(blocks + at + 1, blocks + at, (num_blocks - at) * sizeof *blocks);
        blocks[at].address = address;
        blocks[at].bytes = bytes;
        blocks[at].device = device;
        num_blocks++;
        *ptr = (void *)address;
        used_bytes[device] += bytes;
    }
    pthread_mutex_unlock(&lock);
    return fits ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *ptr)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_blocks; i++) {
        if (blocks[i].address == (size_t)ptr) {
            used_bytes[blocks[i].device] -= blocks[i].bytes;
            num_blocks--;
            memmove(blocks + i, blocks + i + 1, (num_blocks - i) * sizeof *blocks);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **ptr, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return cudaMalloc(ptr, bytes);
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    (void)stream;
    return cudaFree(ptr);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes)
{
    *free_bytes = total_bytes - used_bytes[current_device];
    *all_bytes = total_bytes;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)to, (void)from, (void)bytes, (void)kind;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
    cudaStream_t stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
    size_t bytes, cudaStream_t stream)
{
    (void)to, (void)to_device, (void)from, (void)from_device, (void)bytes, (void)stream;
    return cudaSuccess;
}

/* ---- Streams and events ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    static size_t last = 0x1000;
    (void)flags, (void)priority;
    *stream = (cudaStream_t)__atomic_add_fetch(&last, 16, __ATOMIC_RELAXED);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
    unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
    const cudaGraphEdgeData **edges, size_t *count)
{
    (void)id, (void)graph, (void)nodes, (void)edges, (void)count;
    return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    (void)mode;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = malloc(8);
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event, (void)stream;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    (void)flags;
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    return events_are_held ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    (void)start, (void)end;
    *milliseconds = 0;
    return cudaSuccess;
}

/* ---- Linked to, never called on the way of the benches ---- */

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
    cudaGraphEdgeData *edges, size_t *count)
{
    (void)node, (void)nodes, (void)edges, (void)count;
    return cudaErrorNotSupported;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
    (void)handle, (void)ptr;
    return cudaErrorNotSupported;
}

cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned flags)
{
    (void)ptr, (void)handle, (void)flags;
    return cudaErrorNotSupported;
}

cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
    (void)ptr;
    return cudaErrorNotSupported;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    (void)pool, (void)device;
    return cudaErrorNotSupported;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)pool, (void)attribute, (void)value;
    return cudaErrorNotSupported;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)pool, (void)attribute, (void)value;
    return cudaErrorNotSupported;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
    size_t count)
{
    (void)pool, (void)access, (void)count;
    return cudaErrorNotSupported;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
    (void)pool, (void)bytes;
    return cudaErrorNotSupported;
}

/* ---- The driver, for expandable segments ---- */

static CUresult driver_nothing(void)
{
    return CUDA_SUCCESS;
}

static CUresult driver_reserve(CUdeviceptr *range, size_t bytes, size_t alignment,
    CUdeviceptr wanted, unsigned long long flags)
{
    (void)alignment, (void)wanted, (void)flags;
    *range = __atomic_fetch_add(&next_range, bytes + GAP, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

/* A handle is its size, which is of whole pages, and its device. */
static CUresult driver_create(CUmemGenericAllocationHandle *handle, size_t bytes,
    const CUmemAllocationProp *properties, unsigned long long flags)
{
    const int device = properties->location.id;
    (void)flags;
    pthread_mutex_lock(&lock);
    const int fits = used_bytes[device] + bytes <= total_bytes;
    if (fits)
        used_bytes[device] += bytes;
    pthread_mutex_unlock(&lock);
    *handle = bytes | (CUmemGenericAllocationHandle)device;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult driver_release(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    used_bytes[handle % PAGE] -= handle - handle % PAGE;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult driver_granularity(size_t *bytes, const CUmemAllocationProp *properties,
    CUmemAllocationGranularity_flags flags)
{
    (void)properties, (void)flags;
    *bytes = PAGE;
    return CUDA_SUCCESS;
}

static CUresult driver_attribute(int *value, int attribute, int device)
{
    (void)attribute, (void)device;
    *value = 1;
    return CUDA_SUCCESS;
}

static CUresult driver_error_string(CUresult error, const char **text)
{
    (void)error;
    *text = "stub";
    return CUDA_SUCCESS;
}

static CUresult driver_device(int *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult driver_context(CUcontext *context)
{
    static int the_context;
    *context = (CUcontext)&the_context;
    return CUDA_SUCCESS;
}

static CUresult driver_context_state(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
    static const struct { const char *symbol; void *function; } known[] = {
        {"cuMemAddressReserve", (void *)driver_reserve},
        {"cuMemCreate", (void *)driver_create},
        {"cuMemRelease", (void *)driver_release},
        {"cuMemGetAllocationGranularity", (void *)driver_granularity},
        {"cuDeviceGetAttribute", (void *)driver_attribute},
        {"cuGetErrorString", (void *)driver_error_string},
        {"cuDeviceGet", (void *)driver_device},
        {"cuCtxGetCurrent", (void *)driver_context},
        {"cuDevicePrimaryCtxGetState", (void *)driver_context_state},
    };
    (void)version, (void)flags;
    *function = (void *)driver_nothing;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(symbol, known[i].symbol) == 0)
            *function = known[i].function;
    }
    if (found != NULL)
        *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
