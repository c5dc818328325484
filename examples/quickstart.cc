// The same as quickstart.c in C++17: objects own, failures throw.

#include <array>
#include <iostream>
#include <tcuda.hpp>

static void work() {
    std::array<float, 1000> host{};
    const tcuda::stream stream;
    const tcuda::allocation memory(sizeof host, stream);
    tcuda::fill(memory.get(), 1.5F, host.size(), stream);
    tcuda::copy(host.data(), memory.get(), sizeof host, stream);
    stream.synchronize();

    std::size_t allocated = 0;
    tcuda::check(tcuda_memory_allocated(TCUDA_CURRENT_DEVICE, &allocated)); // all of C is there
    std::cout << host.front() << " ... " << host.back() << ", " << allocated
              << " bytes allocated\n";
}

int main() {
    try {
        work();
        std::size_t live = 0;
        tcuda::check(tcuda_shutdown(&live));
        return live == 0 ? 0 : 1;
    } catch (const tcuda::error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
