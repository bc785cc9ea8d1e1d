/* What the tests of src/cards.rs load in place of NVIDIA's libnvidia-ml.so: three cards, of which one is sound, one knows less, and
 * one is lost. -DNO_DRIVER: there is no driver behind the library. -DHANGS: it answers after two seconds. */
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef char *device; /* points into cards */

static char cards[3];

static int of(device d) { return (int)(d - cards); }

int nvmlInit_v2(void) {
#ifdef NO_DRIVER
    return DRIVER_NOT_LOADED;
#endif
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result) { return result == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "another"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    strncpy(version, "580.95.05", length);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
#ifdef HANGS
    sleep(2);
#endif
    *count = sizeof cards;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *d) {
    *d = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetName(device d, char *name, unsigned length) {
    strncpy(name, "Card of a test", length);
    return of(d) == 2 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetUUID(device d, char *uuid, unsigned length) {
    strncpy(uuid, of(d) == 0 ? "GPU-0" : "GPU-1", length);
    return of(d) == 2 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetPowerUsage(device d, unsigned *milliwatts) {
    *milliwatts = 312500;
    return of(d) == 0 ? SUCCESS : of(d) == 1 ? NOT_SUPPORTED : GPU_IS_LOST;
}

int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *milliwatts) {
    *milliwatts = 700000;
    return of(d) == 0 ? SUCCESS : of(d) == 1 ? NOT_SUPPORTED : GPU_IS_LOST;
}

int nvmlDeviceGetMemoryInfo_v2(device d, memory_v2 *memory) {
    memory->total = 80ull << 30;
    memory->reserved = 1ull << 30;
    memory->used = 20ull << 30;
    memory->free = 59ull << 30;
    return of(d) == 2 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device d, utilization *rates) {
    rates->gpu = 87;
    rates->memory = 40;
    return of(d) == 2 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetTemperature(device d, int sensor, unsigned *celsius) {
    *celsius = sensor == 0 && of(d) == 0 ? 61 : 44;
    return of(d) == 2 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *reasons) {
    *reasons = 0x4; /* the software's cap of power */
    return of(d) == 2 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device d, int kind, int since, unsigned long long *count) {
    *count = kind == 0 && since == 0 ? 3 : 0;
    return of(d) == 0 ? SUCCESS : of(d) == 1 ? NOT_SUPPORTED : GPU_IS_LOST;
}
