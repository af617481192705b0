/* A driver's management library for machines without one: it tells what the environment says.
   STAND_IN_GPUS=2 STAND_IN_NAME="NVIDIA L4" STAND_IN_BYTES=24152899584 STAND_IN_CUDA=13000 STAND_IN_STATUS=0 STAND_IN_MEMORY_STATUS=0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long long number(const char *name) { const char *text = getenv(name); return text ? atoll(text) : 0; }

int nvmlInit_v2(void) { return (int)number("STAND_IN_STATUS"); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number("STAND_IN_GPUS"); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    (void)device;
    strncpy(name, getenv("STAND_IN_NAME") ? getenv("STAND_IN_NAME") : "", length);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    (void)device;
    memory[0] = memory[1] = (unsigned long long)number("STAND_IN_BYTES");
    memory[2] = 0;
    return (int)number("STAND_IN_MEMORY_STATUS");
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, "GPU-%08x-52b8-8a76-f3c4-6a6bd2d5a0%02x", 0xa1b2c3d0u + (unsigned)(size_t)device, (unsigned)(size_t)device);
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = (int)number("STAND_IN_CUDA"); return 0; }
int nvmlSystemGetDriverVersion(char *name, unsigned length) { strncpy(name, "535.104.05", length); return 0; }
