// The devices of this process and the file with their states.
#define _GNU_SOURCE
#include "simulation.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

unsigned simulated_devices(void) {
    const char *text = getenv("SIMULATED_GPUS");
    unsigned count = text ? (unsigned)atoi(text) : 0;
    return count > MAX_DEVICES ? MAX_DEVICES : count;
}

DeviceState *simulated_state(unsigned device) {
    static DeviceState healthy[MAX_DEVICES];
    static DeviceState *states;
    if (!states) {
        const char *path = getenv("SIMULATED_GPU_STATE");
        int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (file >= 0) {
            void *found = mmap(NULL, sizeof healthy, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            close(file);
            if (found != MAP_FAILED) states = found;
        }
        if (!states) states = healthy;
    }
    return &states[device];
}
