/* What stands in for NVIDIA's nccl.h where its package (300 MB) is not: the functions that
 * tcuda_nccl.hpp calls, with NCCL's types, which c_tests/adapters/nccl.cc defines. */
#ifndef NCCL_H_
#define NCCL_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4
} ncclResult_t;

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);

#ifdef __cplusplus
}
#endif

#endif /* NCCL_H_ */
