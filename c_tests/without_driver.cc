// tcuda.hpp's guards on a machine without a driver: those of nothing change nothing, and do not
// throw.
#include <cstdio>
#include <cstdlib>
#include <tcuda.hpp>

static int failures = 0;

static void expect(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "FAILED: %s (%s)\n", what, tcuda_last_error());
    failures++;
}

int main() {
    setenv("TCUDA_BACKEND", "cuda", 1);
    setenv("TCUDA_CUDA_DRIVER_PATH", "/nonexistent/libcuda.so.1", 1);
    {
        const tcuda::device_guard device(-1);
        expect(device.status() == TCUDA_STATUS_OK && device.previous() == -1, "no device");
        const tcuda::stream_guard stream{tcuda::stream_view()};
        expect(stream.status() == TCUDA_STATUS_OK && stream.previous().get() == nullptr,
               "no stream");
    }
    bool has_thrown = false;
    try {
        const tcuda::device_guard device(0);
    } catch (const tcuda::error &error) {
        has_thrown = error.status() == TCUDA_STATUS_NO_DRIVER;
    }
    expect(has_thrown, "device 0 does not exist");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
