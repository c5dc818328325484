// Sets the condition of a conditional node of a graph from a byte in memory.

// The driver's, which it links when it loads the image (CUDA 12.3).
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void tcuda_set_condition(
    unsigned long long handle, const unsigned char *predicate)
{
    cudaGraphSetConditional(handle, *predicate != 0);
}
