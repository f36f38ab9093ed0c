// A simulated CUDA driver for tests of the trainer's control flow on machines without a GPU.
//
// Device memory is host memory, so copies are real. Kernels are not run: numbers are meaningless. As with the real
// driver, a child of a process that has called cuInit cannot use CUDA, and an error of a kernel is final for its
// process. NVIDIA's runtime checks the integrity of its driver; that is not imitated (cuGetExportTable fails), and
// runtime.c answers the runtime's public functions instead.
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT (2UL << 20)
static const size_t memory_bytes = 80UL << 30;

typedef struct { int device; unsigned long long id; } Context;
static Context contexts[MAX_DEVICES];
static unsigned retained[MAX_DEVICES];
static size_t used_bytes[MAX_DEVICES];
static __thread Context *current;
static pid_t initialised_in;
static Result final_error;
static int wedged;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct { Result code; const char *driver_name, *runtime_name, *text; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "cudaSuccess", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory"},
    {NOT_INITIALISED, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device ordinal"},
    {ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable",
     "uncorrectable ECC error encountered"},
    {NVLINK_UNCORRECTABLE, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "cudaErrorNotReady", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {ASSERT, "CUDA_ERROR_ASSERT", "cudaErrorAssert", "device-side assert triggered"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "operation not supported"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error"},
};

static unsigned entry(Result code) {
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return i;
    return sizeof errors / sizeof *errors - 1;
}
const char *simulated_error_text(Result code) { return errors[entry(code)].text; }
const char *simulated_runtime_name(Result code) { return errors[entry(code)].runtime_name; }
Result cuGetErrorString(Result code, const char **text) { *text = simulated_error_text(code); return SUCCESS; }
Result cuGetErrorName(Result code, const char **name) { *name = errors[entry(code)].driver_name; return SUCCESS; }

// Initialisation.

Result cuInit(unsigned flags) {
    (void)flags;
    if (initialised_in && initialised_in != getpid()) return NOT_INITIALISED;
    if (!simulated_devices()) return NO_DEVICE;
    for (unsigned i = 0; i < simulated_devices(); i++) {
        if (simulated_state(i)->lost) return UNKNOWN;
        contexts[i] = (Context){(int)i, i + 1};
    }
    initialised_in = getpid();
    return SUCCESS;
}

#define REQUIRE_INIT() do { if (initialised_in != getpid()) return NOT_INITIALISED; } while (0)

// The device of this thread, or the error that has ended all work of this process on a device.
#define REQUIRE_DEVICE() do { Result found_ = simulated_health(); if (found_) return found_; } while (0)

Result simulated_health(void) {
    REQUIRE_INIT();
    if (final_error) return final_error;
    if (current && simulated_state((unsigned)current->device)->lost) final_error = UNKNOWN;
    return final_error;
}

Result simulated_launch(void) {
    REQUIRE_DEVICE();
    DeviceState *state = simulated_state(current ? (unsigned)current->device : 0);
    uint32_t error = __atomic_exchange_n(&state->error, 0, __ATOMIC_SEQ_CST);
    if (error) final_error = (Result)error;
    if (__atomic_exchange_n(&state->wedged, 0, __ATOMIC_SEQ_CST)) wedged = 1;
    // An error of a kernel is reported by a later call, as by a real device.
    return SUCCESS;
}

Result simulated_synchronize(void) {
    while (wedged) pause();
    return simulated_health();
}

Result simulated_query(void) { return wedged ? NOT_READY : simulated_health(); }

// Devices.

static int exists(int device) { return device >= 0 && (unsigned)device < simulated_devices(); }

Result cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
Result cuDeviceGetCount(int *count) { REQUIRE_INIT(); *count = (int)simulated_devices(); return SUCCESS; }
Result cuDeviceGet(int *device, int index) { REQUIRE_INIT(); *device = index; return exists(index) ? SUCCESS : INVALID_DEVICE; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; REQUIRE_INIT(); *bytes = memory_bytes; return SUCCESS; }

Result cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    REQUIRE_INIT();
    snprintf(name, (size_t)length, "NVIDIA H100 80GB HBM3 (simulated)");
    return SUCCESS;
}

Result cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    memcpy(uuid, "simulated-H100-0", 16);
    uuid[15] = (unsigned char)device;
    return SUCCESS;
}

Result cuDeviceGetPCIBusId(char *text, int length, int device) {
    REQUIRE_INIT();
    snprintf(text, (size_t)length, "0000:%02X:00.0", (unsigned)device + 1);
    return SUCCESS;
}

// CUdevice_attribute -> value of an H100 SXM. Those not listed are 0.
static const int h100[][2] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
    {10, 32}, {11, 2147483647}, {12, 65536}, {13, 1980000}, {14, 512}, {16, 132}, {19, 1}, {31, 1}, {32, 1},
    {36, 2619000}, {37, 5120}, {38, 52428800}, {39, 2048}, {40, 3}, {41, 1}, {75, 9}, {76, 0}, {78, 1}, {79, 1},
    {80, 1}, {81, 233472}, {82, 65536}, {83, 1}, {87, 64}, {88, 1}, {89, 1}, {90, 1}, {95, 1}, {97, 232448},
    {98, 1}, {99, 1}, {106, 32}, {108, 33030144}, {109, 134213632}, {111, 1024}, {115, 1}, {120, 1},
};

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    REQUIRE_INIT();
    if (!exists(device)) return INVALID_DEVICE;
    *value = attribute == 33 ? device + 1 : 0;
    for (unsigned i = 0; i < sizeof h100 / sizeof *h100; i++)
        if (h100[i][0] == attribute) *value = h100[i][1];
    return SUCCESS;
}

// Contexts: the primary one of each device.

Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    REQUIRE_INIT();
    if (!exists(device)) return INVALID_DEVICE;
    retained[device]++;
    *context = &contexts[device];
    return SUCCESS;
}
Result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    REQUIRE_INIT();
    if (!exists(device)) return INVALID_DEVICE;
    if (flags) *flags = 0;
    *active = retained[device] > 0;
    return SUCCESS;
}
Result cuCtxGetCurrent(Context **context) { REQUIRE_INIT(); *context = current; return SUCCESS; }
Result cuCtxSetCurrent(Context *context) { REQUIRE_INIT(); current = context; return SUCCESS; }
Result cuCtxGetDevice(int *device) {
    REQUIRE_INIT();
    *device = current ? current->device : 0;
    return current ? SUCCESS : INVALID_CONTEXT;
}
Result cuCtxSynchronize(void) { return simulated_synchronize(); }

// Memory: an allocation is host memory, noted so that pointers can be asked about. That of devices is in a file
// in memory, by which another process can map it; no part of the file is used twice, so new memory is zero.

typedef struct Block {
    uintptr_t at, reserved;
    size_t size, reserved_size;
    off_t offset;  // in the file, NOT_OWN if another process has allocated it or it is the host's
    int device, kind;
    struct Block *next;
} Block;
enum { NOT_OWN = -1 };
static Block *blocks;
static int file = -1;
static off_t file_end;

static void note_block(Block noted) {
    Block *block = malloc(sizeof *block);
    *block = noted;
    block->next = blocks;
    blocks = block;
    if (block->offset != NOT_OWN) used_bytes[block->device] += block->size;
}

static void *map_file(void *at, size_t size, int from, off_t offset) {
    return mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0), from, offset);
}

Result simulated_allocate(void **pointer, size_t bytes, int kind) {
    REQUIRE_DEVICE();
    int device = current ? current->device : 0;
    DeviceState *state = simulated_state((unsigned)device);
    size_t size = (bytes + 4095) & ~4095UL;
    if (!size) { *pointer = NULL; return SUCCESS; }
    if (kind == DEVICE_MEMORY) {
        if (used_bytes[device] + size > memory_bytes) return OUT_OF_MEMORY;
        if (state->failing_allocations) { state->failing_allocations--; return OUT_OF_MEMORY; }
    }
    size_t reserved = size + ALIGNMENT;
    void *memory = mmap(NULL, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    uintptr_t at = ((uintptr_t)memory + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    Block block = {at, (uintptr_t)memory, size, reserved, NOT_OWN, device, kind, NULL};
    pthread_mutex_lock(&lock);
    if (kind == DEVICE_MEMORY) {
        if (file < 0) file = memfd_create("simulated GPU memory", MFD_CLOEXEC);
        block.offset = file_end;
        file_end += (off_t)size;
        if (ftruncate(file, file_end) || map_file((void *)at, size, file, block.offset) == MAP_FAILED) abort();
    }
    note_block(block);
    pthread_mutex_unlock(&lock);
    *pointer = (void *)at;
    return SUCCESS;
}

Result simulated_free(void *pointer) {
    Result result = pointer ? INVALID_VALUE : SUCCESS;
    pthread_mutex_lock(&lock);
    for (Block **each = &blocks; *each; each = &(*each)->next) {
        Block *found = *each;
        if (found->at != (uintptr_t)pointer) continue;
        *each = found->next;
        munmap((void *)found->reserved, found->reserved_size);
        if (found->offset != NOT_OWN) {
            used_bytes[found->device] -= found->size;
            fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, found->offset, (off_t)found->size);
        }
        free(found);
        result = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

// An allocation, for another process.
typedef struct { pid_t owner; int file; off_t offset; size_t size; } Shared;

Result simulated_share(void *handle, const void *pointer) {
    Result result = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (Block *each = blocks; each; each = each->next)
        if (each->at == (uintptr_t)pointer && each->offset != NOT_OWN) {
            Shared shared = {getpid(), file, each->offset, each->size};
            memcpy(handle, &shared, sizeof shared);
            result = SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

Result simulated_open(void **pointer, const void *handle) {
    REQUIRE_DEVICE();
    Shared shared;
    memcpy(&shared, handle, sizeof shared);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.owner, shared.file);
    int theirs = open(path, O_RDWR | O_CLOEXEC);
    if (theirs < 0) return INVALID_VALUE;
    *pointer = map_file(NULL, shared.size, theirs, shared.offset);
    close(theirs);
    if (*pointer == MAP_FAILED) return OUT_OF_MEMORY;
    uintptr_t at = (uintptr_t)*pointer;
    pthread_mutex_lock(&lock);
    note_block((Block){at, at, shared.size, shared.size, NOT_OWN, current ? current->device : 0, DEVICE_MEMORY, NULL});
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int simulated_kind(const void *pointer, int *device) {
    int kind = 0;
    pthread_mutex_lock(&lock);
    for (Block *each = blocks; each && !kind; each = each->next)
        if ((uintptr_t)pointer - each->at < each->size) { kind = each->kind; *device = each->device; }
    pthread_mutex_unlock(&lock);
    return kind;
}

Result simulated_copy(void *to, const void *from, size_t bytes) {
    Result result = simulated_synchronize();
    if (!result) memmove(to, from, bytes);
    return result;
}

Result simulated_set(void *to, int value, size_t bytes) {
    REQUIRE_DEVICE();
    memset(to, value, bytes);
    return SUCCESS;
}

Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    REQUIRE_DEVICE();
    *total = memory_bytes;
    *free_bytes = memory_bytes - used_bytes[current ? current->device : 0];
    return SUCCESS;
}
Result cuMemsetD32Async(uintptr_t to, unsigned value, size_t count, void *stream) {
    (void)stream;
    REQUIRE_DEVICE();
    for (size_t i = 0; i < count; i++) ((unsigned *)to)[i] = value;
    return SUCCESS;
}

// Code: modules are loaded without being read, kernels launched without being run.

#define HANDLE(name, ...) Result name(void **handle, __VA_ARGS__) { REQUIRE_DEVICE(); *handle = calloc(1, 64); return SUCCESS; }
HANDLE(cuModuleLoadData, const void *image)
HANDLE(cuModuleLoadDataEx, const void *image, unsigned count, void *options, void **values)
HANDLE(cuModuleGetFunction, void *module, const char *name)
HANDLE(cuModuleLoad, const char *path)
HANDLE(cuLibraryLoadData, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f)
HANDLE(cuLibraryGetModule, void *library)
HANDLE(cuLibraryGetKernel, void *library, const char *name)
HANDLE(cuKernelGetFunction, void *kernel)
Result cuModuleUnload(void *module) { free(module); return SUCCESS; }
Result cuLibraryUnload(void *library) { free(library); return SUCCESS; }
Result cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return SUCCESS; }
Result cuFuncSetCacheConfig(void *function, int preference) { (void)function; (void)preference; return SUCCESS; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function, int size, size_t shared) {
    (void)function;
    (void)size;
    (void)shared;
    *count = 2;
    return SUCCESS;
}
Result cuLaunchKernel(void) { return simulated_launch(); }

// Look-up: the newest variant of a function is the one that fits CUDA 13.

Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version;
    (void)flags;
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr((void *)cuInit, &info);
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    *function = NULL;
    for (unsigned i = 0; i < 3 && !*function; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        *function = dlsym(self, full);
    }
    if (status) *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}

Result cuGetExportTable(const void **table, const unsigned char *id) {
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

Result simulated_missing(const char *name) {
    if (getenv("SIMULATED_CUDA_VERBOSE")) fprintf(stderr, "simulated CUDA: %s is not simulated\n", name);
    return NOT_SUPPORTED;
}
