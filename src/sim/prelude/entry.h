namespace tcuda_host {
template <one_thread *one> void run(const launch *launch) {
    gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
    blockDim = dim3(launch->block[0], launch->block[1], launch->block[2]);
    dynamic_shared = launch->shared;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                run_block(launch, one);
}
struct kernel {
    const char *name;
    const size_t *sizes;
    const unsigned char *pointers; /* 0: no pointer; 1: a pointer; 2: may contain pointers */
    size_t number;
    void (*run)(const launch *);
    size_t fiber_bytes; /* bytes of a thread context; 0: threads run one by one */
};
}
