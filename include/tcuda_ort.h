/* tcuda_ort.h: ONNX Runtime's CUDA provider allocates device memory with tcuda. C99 and C++.
 *
 *     OrtCUDAProviderOptionsV2 *cuda = NULL;
 *     tcuda_ort_options options;
 *     status = tcuda_ort_options_fill(&options, 0, stream); // device 0; NULL: its current stream
 *     ort->CreateCUDAProviderOptions(&cuda);
 *     ort->UpdateCUDAProviderOptions(cuda, options.keys, options.values, options.count);
 *     ort->SessionOptionsAppendExecutionProvider_CUDA_V2(session_options, cuda);
 *     ... // create sessions and run them, on any thread
 *     tcuda_ort_options_clear(0); // when the last session of the device is released
 *
 * The options are gpu_external_alloc, gpu_external_free and gpu_external_empty_cache, the addresses
 * of tcuda_ort_alloc_on_stream, tcuda_ort_free and tcuda_ort_empty_cache in decimal digits;
 * user_compute_stream, so that the sessions queue their work to the stream whose memory they get;
 * and device_id. ONNX Runtime then uses no arena of its own. tcuda_ort_malloc of tcuda.h allocates
 * for the current stream of the calling thread instead, which is right for sessions that run on one
 * thread.
 *
 * Order       Memory is allocated and freed in the order of the one stream of its device. Work of
 *             the host on other streams is ordered by the host.
 * Ownership   The stream is the caller's and outlives the sessions. The texts are in the options,
 *             which must not be copied; ONNX Runtime copies the texts.
 * Threads     Clear, and fill for the first time, while no session of the device exists. ONNX
 *             Runtime calls the functions on any thread; memory is that of the current CUDA device,
 *             which ONNX Runtime sets. The state is that of the source file that includes this
 *             header: fill in one file only.
 * Errors      tcuda_ort_alloc_on_stream gives NULL, which ONNX Runtime reports;
 *             tcuda_last_error() has the reason. TCUDA_STATUS_INVALID_STATE of
 *             tcuda_ort_options_fill: the device has another stream, which is to be cleared. */

#ifndef TCUDA_ORT_H
#define TCUDA_ORT_H

#include <tcuda.h>

#include <stdio.h>

#define TCUDA_ORT_MAX_DEVICES 64
#define TCUDA_ORT_OPTION_COUNT 5

/* For UpdateCUDAProviderOptions. */
typedef struct tcuda_ort_options {
    const char *keys[TCUDA_ORT_OPTION_COUNT];
    const char *values[TCUDA_ORT_OPTION_COUNT];
    size_t count; /* of keys and values */
    char text[TCUDA_ORT_OPTION_COUNT][24];
} tcuda_ort_options;

/* The stream of each device. */
static struct {
    struct CUstream_st *cu_stream;
    bool is_set;
} tcuda_ort_devices_[TCUDA_ORT_MAX_DEVICES];

/* gpu_external_alloc: memory of the current device, for its stream; NULL: there is none. */
static inline void *tcuda_ort_alloc_on_stream(size_t bytes)
{
    int32_t device = -1;
    void *ptr = NULL;
    if (tcuda_device_current(&device) != TCUDA_STATUS_OK || device < 0
        || device >= TCUDA_ORT_MAX_DEVICES || !tcuda_ort_devices_[device].is_set
        || tcuda_malloc_native(bytes, device, tcuda_ort_devices_[device].cu_stream, &ptr)
            != TCUDA_STATUS_OK)
        return NULL;
    return ptr;
}

static inline void tcuda_ort_option_(tcuda_ort_options *options, const char *key, uintptr_t value)
{
    char *const text = options->text[options->count];
    snprintf(text, sizeof options->text[0], "%llu", (unsigned long long)value);
    options->keys[options->count] = key;
    options->values[options->count++] = text;
}

/* Sets the stream of a device for the functions above, and the options. Initialises tcuda.
 *
 * options  written only if this succeeds
 * device   an ordinal below 64, or TCUDA_CURRENT_DEVICE
 * stream   of that device; NULL: its current stream */
TCUDA_NODISCARD
static inline tcuda_status tcuda_ort_options_fill(tcuda_ort_options *options, int32_t device,
    tcuda_stream *stream)
{
    struct CUstream_st *cu_stream = NULL;
    int32_t of_stream = -1;
    tcuda_status status = TCUDA_STATUS_OK;
    if (device == TCUDA_CURRENT_DEVICE)
        status = tcuda_device_current(&device);
    if (status == TCUDA_STATUS_OK && stream == NULL)
        status = tcuda_stream_current(device, &stream);
    if (status == TCUDA_STATUS_OK)
        status = tcuda_stream_native(stream, &cu_stream);
    if (status == TCUDA_STATUS_OK)
        status = tcuda_stream_device(stream, &of_stream);
    if (status != TCUDA_STATUS_OK)
        return status;
    if (of_stream != device || device >= TCUDA_ORT_MAX_DEVICES)
        return TCUDA_STATUS_INVALID_DEVICE;
    if (tcuda_ort_devices_[device].is_set && tcuda_ort_devices_[device].cu_stream != cu_stream)
        return TCUDA_STATUS_INVALID_STATE;
    tcuda_ort_devices_[device].cu_stream = cu_stream;
    tcuda_ort_devices_[device].is_set = true;

    options->count = 0;
    tcuda_ort_option_(options, "device_id", (uintptr_t)device);
    tcuda_ort_option_(options, "gpu_external_alloc", (uintptr_t)&tcuda_ort_alloc_on_stream);
    tcuda_ort_option_(options, "gpu_external_free", (uintptr_t)&tcuda_ort_free);
    tcuda_ort_option_(options, "gpu_external_empty_cache", (uintptr_t)&tcuda_ort_empty_cache);
    /* ONNX Runtime takes 0 for no stream; 1 is CU_STREAM_LEGACY, the default stream by its name. */
    tcuda_ort_option_(options, "user_compute_stream", cu_stream == NULL ? 1 : (uintptr_t)cu_stream);
    return TCUDA_STATUS_OK;
}

/* Forgets the stream of a device: tcuda_ort_alloc_on_stream gives NULL for it again. */
static inline void tcuda_ort_options_clear(int32_t device)
{
    if (device >= 0 && device < TCUDA_ORT_MAX_DEVICES)
        tcuda_ort_devices_[device].is_set = false;
}

#endif /* TCUDA_ORT_H */
