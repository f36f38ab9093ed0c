// What the simulated CUDA driver, runtime and NVML share. For tests on machines without a GPU only.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 16

// The state of one device: a test writes it, and a device reads it on every call. control.py has the same layout.
typedef struct {
    uint32_t error;          // the next kernel launch fails with this CUresult; the launch resets it
    uint32_t wedged;         // the next kernel never ends; its launch resets it
    uint32_t lost;           // the device has fallen off the bus
    uint32_t failing_allocations;
    uint32_t xid;            // the last Xid, and how many there were
    uint32_t xid_count;
    uint64_t ecc_corrected;
    uint64_t ecc_uncorrected;
    uint32_t remap_pending;  // a row of its memory is remapped at the next reset
    uint32_t remap_failed;   // no spare row is left
    uint32_t retirement_pending;
    uint32_t unused[3];
} DeviceState;

// SIMULATED_GPUS is a number of devices, or the ids that the local cluster's device plugin gives to a container, such as
// simulated-3,simulated-0. The file SIMULATED_GPU_STATE has their states: that of simulated-3 is the fourth.
unsigned simulated_devices(void);
DeviceState *simulated_state(unsigned device);
