// A stand-in for NVML on a machine without a GPU, for tests only: SIMULATED_GPUS devices that report as an H100.
#include <stdio.h>
#include <stdlib.h>

enum { OK = 0, INVALID_ARGUMENT = 2, DRIVER_NOT_LOADED = 9 };

static unsigned devices(void) {
    const char *text = getenv("SIMULATED_GPUS");
    return text ? (unsigned)atoi(text) : 0;
}

int nvmlInit(void) { return devices() ? OK : DRIVER_NOT_LOADED; }
int nvmlInit_v2(void) { return nvmlInit(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error ? "simulated NVML error" : "Success"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = devices(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= devices()) return INVALID_ARGUMENT;
    *device = (void *)(long)(index + 1);
    return OK;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    (void)device;
    snprintf(name, length, "NVIDIA H100 80GB HBM3 (simulated)");
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    (void)device;
    *major = 9;
    *minor = 0;
    return OK;
}

// nvmlMemory_t: total, free, used, in bytes.
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    (void)device;
    memory[0] = memory[1] = 80ULL << 30;
    memory[2] = 0;
    return OK;
}
