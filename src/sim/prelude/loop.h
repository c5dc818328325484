static inline void run_block(const launch *launch, one_thread *one) {
    for (threadIdx.z = 0; threadIdx.z < launch->block[2]; ++threadIdx.z)
        for (threadIdx.y = 0; threadIdx.y < launch->block[1]; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < launch->block[0]; ++threadIdx.x)
                one(launch->arguments);
}
}
