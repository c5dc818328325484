#include <cstdio>
#include <tcuda.hpp>

int main() {
    try {
        const tcuda::stream stream;
        const tcuda::allocation memory(1 << 20, stream);
        tcuda::fill(memory.get(), 1.0F, (1 << 20) / sizeof(float), stream);
        stream.synchronize();
        std::printf("1 MiB on %s\n", tcuda_backend_name());
    } catch (const tcuda::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return tcuda_shutdown(nullptr) == TCUDA_STATUS_OK ? 0 : 1;
}
