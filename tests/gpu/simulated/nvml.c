// A simulated NVML: SIMULATED_GPUS devices that report as an H100, with the Xids and ECC counts of their states.
#define _GNU_SOURCE
#include "simulation.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { EVENT_XID = 8 };

static unsigned index_of(void *device) { return (unsigned)((uintptr_t)device - 1); }
#define REQUIRE(device) do { if (simulated_state(index_of(device))->lost) return GPU_IS_LOST; } while (0)

int nvmlInit(void) { return simulated_devices() ? OK : DRIVER_NOT_LOADED; }
int nvmlInit_v2(void) { return nvmlInit(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) {
    return error == OK ? "Success" : error == GPU_IS_LOST ? "GPU is lost" : "simulated NVML error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "simulated"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = simulated_devices(); return OK; }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= simulated_devices()) return INVALID_ARGUMENT;
    *device = (void *)(uintptr_t)(index + 1);
    REQUIRE(*device);
    return OK;
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = index_of(device); return OK; }

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    REQUIRE(device);
    snprintf(name, length, "NVIDIA H100 80GB HBM3 (simulated)");
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    REQUIRE(device);
    snprintf(text, length, "GPU-simulated-%02u", index_of(device));
    return OK;
}

// nvmlPciInfo_t: the legacy name, domain, bus, device, IDs, and the name with eight digits of the domain.
struct pci_info { char legacy[16]; unsigned domain, bus, device, id, subsystem; char name[32]; };

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info) {
    REQUIRE(device);
    memset(info, 0, sizeof *info);
    info->bus = 0x1a + index_of(device);
    snprintf(info->name, sizeof info->name, "00000000:%02X:00.0", info->bus);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    REQUIRE(device);
    *major = 9;
    *minor = 0;
    return OK;
}

// nvmlMemory_t: total, free, used, in bytes.
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    REQUIRE(device);
    memory[0] = memory[1] = 80ULL << 30;
    memory[2] = 0;
    return OK;
}

// type: 0 corrected, 1 uncorrected. Volatile counters (0) and those of the device's life (1) are the same here.
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count) {
    (void)counter;
    REQUIRE(device);
    DeviceState *state = simulated_state(index_of(device));
    *count = type ? state->ecc_uncorrected : state->ecc_corrected;
    return OK;
}

// Rows remapped after corrected and after uncorrected errors; whether one waits for a reset; whether one failed.
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    REQUIRE(device);
    DeviceState *state = simulated_state(index_of(device));
    *corrected = *uncorrected = 0;
    *pending = state->remap_pending;
    *failed = state->remap_failed;
    return OK;
}

// A GPU before Ampere retires pages; a real one supports this or the rows above.
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *pending) {
    REQUIRE(device);
    *pending = simulated_state(index_of(device))->retirement_pending;
    return OK;
}

// Events: an event set notes how many Xids each device had when it was registered.
static struct { unsigned registered, seen[MAX_DEVICES]; } events;

int nvmlEventSetCreate(void **set) { memset(&events, 0, sizeof events); *set = &events; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) {
    REQUIRE(device);
    *types = EVENT_XID;
    return OK;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)set;
    REQUIRE(device);
    if (types != EVENT_XID) return NOT_SUPPORTED;
    unsigned index = index_of(device);
    events.registered |= 1U << index;
    events.seen[index] = simulated_state(index)->xid_count;
    return OK;
}

typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;

int nvmlEventSetWait_v2(void *set, EventData *data, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0;; waited++) {
        for (unsigned index = 0; index < simulated_devices(); index++) {
            DeviceState *state = simulated_state(index);
            if (!(events.registered >> index & 1) || events.seen[index] == state->xid_count) continue;
            events.seen[index] = state->xid_count;
            *data = (EventData){(void *)(uintptr_t)(index + 1), EVENT_XID, state->xid, 0, 0};
            return OK;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}
