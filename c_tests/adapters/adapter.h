// What the tests of adapters share: streams, bytes, and gates that hold a stream back. C++ only.
#ifndef ADAPTER_H
#define ADAPTER_H

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

inline tcuda_stream *new_stream(std::int32_t device = 0) {
    tcuda_stream *stream = nullptr;
    CHECK_OK(tcuda_stream_create(device, 0, &stream));
    return stream;
}

inline CUstream_st *native_of(tcuda_stream *stream) {
    CUstream_st *native = nullptr;
    CHECK_OK(tcuda_stream_native(stream, &native));
    return native;
}

// Writes a value to each byte in the order of a stream, and reads it back.
inline void check_usable(void *ptr, std::size_t bytes, unsigned char value, tcuda_stream *stream) {
    std::vector<unsigned char> host(bytes);
    CHECK_OK(tcuda_fill(ptr, &value, 1, bytes, stream));
    CHECK_OK(tcuda_copy(host.data(), ptr, bytes, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (const unsigned char byte : host) CHECK_EQ(byte, value);
}

// Bytes of live blocks of device 0.
inline std::uint64_t live_bytes() {
    std::uint64_t value = 0;
    CHECK_OK(tcuda_memory_stat(0, "allocated_bytes.all.current", &value));
    return value;
}

// Does queued work run after the call that queues it?
inline bool runs_late() {
    const char *const options = std::getenv("TCUDA_SIM");
    return std::strcmp(tcuda_backend_name(), "sim") != 0
        || (options != nullptr && std::strstr(options, "schedule=") != nullptr);
}

// Holds a stream back while it exists, where work runs late.
class gate {
public:
    explicit gate(tcuda_stream *stream) {
        if (runs_late()) CHECK_OK(tcuda_stream_add_callback(stream, wait, &open_, nullptr));
    }
    gate(const gate &) = delete;
    gate &operator=(const gate &) = delete;
    void open() { open_ = true; }

private:
    static void wait(void *open) {
        for (int i = 0; i < 30000 && !*static_cast<std::atomic<bool> *>(open); i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    std::atomic<bool> open_{false};
};

#endif // ADAPTER_H
