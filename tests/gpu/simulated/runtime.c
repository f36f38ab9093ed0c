// The public functions of the CUDA runtime that torch calls, over driver.c. To be preloaded: NVIDIA's runtime is
// then never reached. Graphs are not simulated.
#include "driver.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern Result cuDevicePrimaryCtxRetain(void **context, int device);
extern Result cuCtxSetCurrent(void *context);

static __thread int device;
static __thread cudaError_t last;

static cudaError_t note(Result result) {
    // Not ready is a state, not an error.
    if (result && result != NOT_READY) last = (cudaError_t)result;
    return (cudaError_t)result;
}
#define REQUIRE(call) do { Result result_ = (call); if (result_) return note(result_); } while (0)
#define RETURN(call) do { REQUIRE(use_device()); return note(call); } while (0)

static Result use_device(void) {
    void *context;
    Result result = cuInit(0);
    if (!result) result = cuDevicePrimaryCtxRetain(&context, device);
    return result ? result : cuCtxSetCurrent(context);
}

// Devices and errors.

cudaError_t cudaGetDeviceCount(int *count) { *count = 0; REQUIRE(cuInit(0)); return note(cuDeviceGetCount(count)); }
cudaError_t cudaGetDevice(int *found) { REQUIRE(cuInit(0)); *found = device; return cudaSuccess; }
cudaError_t cudaSetDevice(int chosen) {
    REQUIRE(cuInit(0));
    if (chosen < 0 || (unsigned)chosen >= simulated_devices()) return note(INVALID_DEVICE);
    device = chosen;
    return note(use_device());
}
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    if (error == cudaSuccess && simulated_health() > NOT_INITIALISED) return (cudaError_t)simulated_health();
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t error) { return simulated_error_text((Result)error); }
const char *cudaGetErrorName(cudaError_t error) { return simulated_runtime_name((Result)error); }
cudaError_t cudaDriverGetVersion(int *version) { return note(cuDriverGetVersion(version)); }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int of) {
    REQUIRE(cuInit(0));
    return note(cuDeviceGetAttribute(value, attribute, of));
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int of) {
    REQUIRE(cuInit(0));
    memset(p, 0, sizeof *p);
    int value = 0;
#define ATTRIBUTE(field, number) do { REQUIRE(cuDeviceGetAttribute(&value, number, of)); p->field = value; } while (0)
    ATTRIBUTE(major, cudaDevAttrComputeCapabilityMajor);
    ATTRIBUTE(minor, cudaDevAttrComputeCapabilityMinor);
    ATTRIBUTE(multiProcessorCount, cudaDevAttrMultiProcessorCount);
    ATTRIBUTE(warpSize, cudaDevAttrWarpSize);
    ATTRIBUTE(maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock);
    ATTRIBUTE(maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor);
    ATTRIBUTE(sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock);
    ATTRIBUTE(sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    ATTRIBUTE(sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ATTRIBUTE(regsPerBlock, cudaDevAttrMaxRegistersPerBlock);
    ATTRIBUTE(regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor);
    ATTRIBUTE(l2CacheSize, cudaDevAttrL2CacheSize);
    ATTRIBUTE(memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth);
    ATTRIBUTE(textureAlignment, cudaDevAttrTextureAlignment);
    ATTRIBUTE(maxGridSize[0], cudaDevAttrMaxGridDimX);
    ATTRIBUTE(maxGridSize[1], cudaDevAttrMaxGridDimY);
    ATTRIBUTE(maxGridSize[2], cudaDevAttrMaxGridDimZ);
    ATTRIBUTE(maxThreadsDim[0], cudaDevAttrMaxBlockDimX);
    ATTRIBUTE(maxThreadsDim[1], cudaDevAttrMaxBlockDimY);
    ATTRIBUTE(maxThreadsDim[2], cudaDevAttrMaxBlockDimZ);
    ATTRIBUTE(pciBusID, cudaDevAttrPciBusId);
    p->ECCEnabled = p->unifiedAddressing = p->managedMemory = p->concurrentKernels = p->canMapHostMemory = 1;
    cuDeviceGetName(p->name, sizeof p->name, of);
    cuDeviceGetUuid_v2((unsigned char *)&p->uuid, of);
    cuDeviceTotalMem_v2(&p->totalGlobalMem, of);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int of) { REQUIRE(cuInit(0)); return note(cuDeviceGetPCIBusId(text, length, of)); }
cudaError_t cudaDeviceCanAccessPeer(int *can, int one, int other) { *can = one != other; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int of, unsigned flags) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    Result found = cuGetProcAddress_v2(name, function, (int)version, flags, NULL);
    if (result) *result = found ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

// Memory.

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) { RETURN(cuMemGetInfo_v2(free_bytes, total)); }
cudaError_t cudaMalloc(void **pointer, size_t bytes) { RETURN(simulated_allocate(pointer, bytes, DEVICE_MEMORY)); }
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFree(void *pointer) { RETURN(simulated_free(pointer)); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) { RETURN(simulated_allocate(pointer, bytes, HOST_MEMORY)); }
cudaError_t cudaFreeHost(void *pointer) { RETURN(simulated_free(pointer)); }
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *pointer) { return cudaSuccess; }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) { RETURN(simulated_share(handle, pointer)); }
cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) { RETURN(simulated_open(pointer, &handle)); }
cudaError_t cudaIpcCloseMemHandle(void *pointer) { RETURN(simulated_free(pointer)); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) { RETURN(simulated_copy(to, from, bytes)); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < height && !error; row++)
        error = cudaMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
    return error;
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) { return cudaMalloc(pointer, 1 << 16); }
cudaError_t cudaMemset(void *to, int value, size_t bytes) { RETURN(simulated_set(to, value, bytes)); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) { return cudaMemset(to, value, bytes); }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    int of = -1;
    memset(attributes, 0, sizeof *attributes);
    REQUIRE(use_device());
    attributes->type = (enum cudaMemoryType)simulated_kind(pointer, &of);
    attributes->device = of;
    if (attributes->type) attributes->devicePointer = (void *)pointer;
    if (attributes->type == cudaMemoryTypeHost) attributes->hostPointer = (void *)pointer;
    return cudaSuccess;
}

// Streams and events: all work is done when a call returns, unless a kernel is wedged.

#define NEW(name, type, ...) cudaError_t name(type *handle __VA_OPT__(,) __VA_ARGS__) { REQUIRE(use_device()); *handle = calloc(1, 64); return cudaSuccess; }
NEW(cudaStreamCreate, cudaStream_t)
NEW(cudaStreamCreateWithPriority, cudaStream_t, unsigned flags, int priority)
NEW(cudaEventCreate, cudaEvent_t)
NEW(cudaEventCreateWithFlags, cudaEvent_t, unsigned flags)
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { RETURN(simulated_synchronize()); }
cudaError_t cudaDeviceSynchronize(void) { RETURN(simulated_synchronize()); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { RETURN(simulated_query()); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { RETURN(simulated_health()); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) { function(data); return cudaSuccess; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
    // A thread of gloo records one when it frees memory. torch aborts the process when that fails, and which thread
    // learns of an error first would be chance: only the main thread does.
    if (syscall(SYS_gettid) != getpid()) return cudaSuccess;
    RETURN(simulated_health());
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventQuery(cudaEvent_t event) { RETURN(simulated_query()); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { RETURN(simulated_synchronize()); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    const struct timespec *from = (const struct timespec *)start, *to = (const struct timespec *)end;
    *ms = (float)(to->tv_sec - from->tv_sec) * 1e3f + (float)(to->tv_nsec - from->tv_nsec) / 1e6f;
    return cudaSuccess;
}

// Kernels.

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { RETURN(simulated_launch()); }
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { RETURN(simulated_launch()); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *configuration, const void *kernel, void **arguments) { RETURN(simulated_launch()); }
cudaError_t __cudaGetKernel(void **found, const void *kernel) { *found = (void *)kernel; return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int size, size_t shared, unsigned flags) {
    *blocks = 2;
    return cudaSuccess;
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

// Registration of kernels while libraries load: nothing of it is needed.

void **__cudaRegisterFatBinary(void *binary) { return calloc(1, 64); }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *symbol, const char *name, int limit, void *a, void *b, void *c, void *d, int *e) {}
void __cudaRegisterVar(void **handle, char *host, char *symbol, const char *name, int external, size_t bytes, int constant, int global) {}
char __cudaInitModule(void **handle) { return 1; }

static __thread struct { dim3 grid, block; size_t shared; void *stream; } calls[8];
static __thread unsigned depth;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    calls[depth].grid = grid, calls[depth].block = block, calls[depth].shared = shared, calls[depth].stream = stream;
    depth++;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    depth--;
    *grid = calls[depth].grid, *block = calls[depth].block, *shared = calls[depth].shared;
    *(void **)stream = calls[depth].stream;
    return cudaSuccess;
}
