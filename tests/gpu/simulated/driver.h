// What runtime.c uses of the simulated driver.
#pragma once
#include "simulation.h"

typedef enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALISED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, ECC_UNCORRECTABLE = 214, NVLINK_UNCORRECTABLE = 220, NOT_FOUND = 500, NOT_READY = 600,
    ILLEGAL_ADDRESS = 700, ASSERT = 710, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, UNKNOWN = 999
} Result;

enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2 };

Result cuInit(unsigned flags);
Result cuDriverGetVersion(int *version);
Result cuDeviceGetCount(int *count);
Result cuDeviceGetName(char *name, int length, int device);
Result cuDeviceGetUuid_v2(unsigned char *uuid, int device);
Result cuDeviceGetPCIBusId(char *text, int length, int device);
Result cuDeviceGetAttribute(int *value, int attribute, int device);
Result cuDeviceTotalMem_v2(size_t *bytes, int device);
Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

const char *simulated_error_text(Result code);
const char *simulated_runtime_name(Result code);
Result simulated_health(void);
Result simulated_launch(void);
Result simulated_synchronize(void);
Result simulated_query(void);
Result simulated_allocate(void **pointer, size_t bytes, int kind);
Result simulated_free(void *pointer);
Result simulated_share(void *handle, const void *pointer);
Result simulated_open(void **pointer, const void *handle);
int simulated_kind(const void *pointer, int *device);  // 0: not allocated by CUDA
Result simulated_copy(void *to, const void *from, size_t bytes);
Result simulated_set(void *to, int value, size_t bytes);
