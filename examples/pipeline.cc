// A pipeline in the order of streams: batches go through pinned staging memory to the device, are
// worked on, and come back. Three streams overlap; the host waits only for staging memory that it
// is about to write again.

#include <array>
#include <cstdio>
#include <tcuda.hpp>

constexpr std::size_t batch = 1 << 20;
constexpr int slots = 2, batches = 8;

struct slot {
    tcuda::host_allocation in{batch}, out{batch};
    tcuda::allocation device;
    tcuda::event uploaded, worked, downloaded;
};

static bool run() {
    const tcuda::stream upload(0), work(0), download(0);
    std::array<slot, slots> ring;
    // Memory of the stream that uses it last: it is freed in that order.
    for (slot &own : ring) own.device = tcuda::allocation(2 * batch, download, 0);
    int right = 0;
    const auto take = [&right](slot &own, int number) {
        own.downloaded.synchronize();
        const auto *const bytes = own.out.as<unsigned char>();
        right += bytes[0] == number && bytes[batch - 1] == number ? 1 : 0;
    };
    for (int i = 0; i < batches; i++) {
        slot &own = ring[static_cast<std::size_t>(i % slots)];
        if (i >= slots) take(own, i - slots);
        for (std::size_t at = 0; at < batch; at++)
            own.in.as<unsigned char>()[at] = static_cast<unsigned char>(i);
        char *const from = own.device.as<char>(), *const to = from + batch;
        upload.wait(own.downloaded);
        tcuda::copy(from, own.in.get(), batch, upload);
        own.uploaded.record(upload);
        work.wait(own.uploaded);
        tcuda::copy(to, from, batch, work); // the work
        own.worked.record(work);
        download.wait(own.worked);
        tcuda::copy(own.out.get(), to, batch, download);
        own.downloaded.record(download);
    }
    for (int i = batches - slots; i < batches; i++)
        take(ring[static_cast<std::size_t>(i % slots)], i);
    std::printf("%d of %d batches came back right\n", right, batches);
    return right == batches;
}

int main() {
    try {
        const bool is_right = run();
        tcuda::check(tcuda_shutdown(nullptr));
        return is_right ? 0 : 1;
    } catch (const tcuda::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
