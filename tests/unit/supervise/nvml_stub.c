/* A libnvidia-ml.so.1 whose devices are described by a text file, read anew at every call:
 *
 *   count 2
 *   0.util 55          a value of device 0
 *   1.power unsupported   NVML_ERROR_NOT_SUPPORTED
 *   1.temp lost           NVML_ERROR_GPU_IS_LOST
 *   xid 1 79           an event, told once for each change of the line
 *
 * The file's name is in NVML_STUB. What it does not mention is not supported.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };
typedef void *Device;

static int look(const char *key, char *text, size_t size)
{
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], found[128];
    int result = NOT_SUPPORTED;
    if (!file)
        return NOT_SUPPORTED;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s", found) == 1 && !strcmp(found, key)) {
            const char *value = line + strlen(key) + 1;
            snprintf(text, size, "%s", value);
            text[strcspn(text, "\n")] = 0;
            result = !strcmp(text, "unsupported") ? NOT_SUPPORTED : !strcmp(text, "lost") ? GPU_IS_LOST : SUCCESS;
        }
    }
    fclose(file);
    return result;
}

static int number(Device device, const char *key, unsigned long long *value)
{
    char name[128], text[128];
    snprintf(name, sizeof name, "%d.%s", (int)(intptr_t)device - 1, key);
    int result = look(name, text, sizeof text);
    if (result == SUCCESS)
        *value = strtoull(text, NULL, 0);
    return result;
}

static int small(Device device, const char *key, unsigned *value)
{
    unsigned long long wide = 0;
    int result = number(device, key, &wide);
    if (result == SUCCESS)
        *value = (unsigned)wide;
    return result;
}

static int text_of(Device device, const char *key, char *text, unsigned size)
{
    char name[128];
    snprintf(name, sizeof name, "%d.%s", (int)(intptr_t)device - 1, key);
    return look(name, text, size);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return result == GPU_IS_LOST ? "GPU is lost" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return look("driver", text, size); }
int nvmlDeviceGetCount_v2(unsigned *count)
{
    char text[32];
    int result = look("count", text, sizeof text);
    *count = result == SUCCESS ? (unsigned)atoi(text) : 0;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) { *device = (Device)(intptr_t)(index + 1); return SUCCESS; }
int nvmlDeviceGetIndex(Device device, unsigned *index) { *index = (unsigned)(intptr_t)device - 1; return SUCCESS; }
int nvmlDeviceGetName(Device device, char *text, unsigned size) { return text_of(device, "name", text, size); }
int nvmlDeviceGetUUID(Device device, char *text, unsigned size) { return text_of(device, "uuid", text, size); }
int nvmlDeviceGetNumaNodeId(Device d, int *node)
{
    unsigned found = 0;
    int result = small(d, "numa", &found);
    *node = (int)found;
    return result;
}
int nvmlDeviceGetCpuAffinity(Device d, unsigned size, unsigned long *words)
{
    unsigned long long mask = 0;
    memset(words, 0, size * sizeof *words);
    int result = number(d, "cpus_near", &mask);
    words[0] = mask;
    return result;
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device d, unsigned *v) { return small(d, "max_pcie_gen", v); }
int nvmlDeviceGetMaxPcieLinkWidth(Device d, unsigned *v) { return small(d, "max_pcie_width", v); }
int nvmlDeviceGetCurrPcieLinkGeneration(Device d, unsigned *v) { return small(d, "pcie_gen", v); }
int nvmlDeviceGetCurrPcieLinkWidth(Device d, unsigned *v) { return small(d, "pcie_width", v); }
int nvmlDeviceGetPcieReplayCounter(Device d, unsigned *v) { return small(d, "replays", v); }
int nvmlDeviceGetMaxClockInfo(Device d, int clock, unsigned *v) { (void)clock; return small(d, "max_sm", v); }
int nvmlDeviceGetClockInfo(Device d, int clock, unsigned *v) { return small(d, clock == 1 ? "sm" : "mem_clock", v); }
int nvmlDeviceGetEnforcedPowerLimit(Device d, unsigned *v) { return small(d, "power_limit", v); }
int nvmlDeviceGetPowerUsage(Device d, unsigned *v) { return small(d, "power", v); }
int nvmlDeviceGetTotalEnergyConsumption(Device d, unsigned long long *v) { return number(d, "energy", v); }
int nvmlDeviceGetTemperature(Device d, int sensor, unsigned *v) { (void)sensor; return small(d, "temp", v); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device d, unsigned long long *v) { return number(d, "reasons", v); }
int nvmlDeviceGetPcieThroughput(Device d, int which, unsigned *v) { return small(d, which ? "rx_kbps" : "tx_kbps", v); }
int nvmlDeviceGetTotalEccErrors(Device d, int kind, int counter, unsigned long long *v)
{
    (void)counter;
    return number(d, kind ? "ecc_uncorrected" : "ecc_corrected", v);
}
int nvmlDeviceGetRemappedRows(Device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    *corrected = *pending = *failed = 0;
    small(d, "remap_pending", pending);
    small(d, "remap_failed", failed);
    return small(d, "remapped", uncorrected);
}
int nvmlDeviceGetUtilizationRates(Device d, unsigned *rates)
{
    int result = small(d, "util", &rates[0]);
    return result ? result : small(d, "mem_util", &rates[1]);
}
int nvmlDeviceGetMemoryInfo(Device d, unsigned long long *memory)
{
    int result = number(d, "memory", &memory[0]);
    return result ? result : number(d, "used", &memory[2]);
}
int nvmlDeviceGetViolationStatus(Device d, int policy, unsigned long long *times)
{
    times[0] = times[1] = 0;
    return policy == 0 ? number(d, "violation_ns", &times[1]) : SUCCESS;
}

typedef struct { uint32_t field, scope; int64_t time, latency; int type, result; unsigned long long value; } Field;
int nvmlDeviceGetFieldValues(Device d, int count, Field *fields)
{
    for (int i = 0; i < count; i++) {
        char key[64];
        snprintf(key, sizeof key, "field%u.%u", fields[i].field, fields[i].scope);
        fields[i].type = 3; /* unsigned long long */
        fields[i].result = number(d, key, &fields[i].value);
    }
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, Process *processes)
{
    unsigned pid = 0;
    if (small(d, "pid", &pid) != SUCCESS) {
        *count = 0;
        return SUCCESS;
    }
    if (!processes || !*count) {
        *count = 1;
        return INSUFFICIENT_SIZE;
    }
    *count = 1;
    memset(processes, 0, sizeof *processes);
    processes[0].pid = pid;
    return SUCCESS;
}

typedef struct { Device device; unsigned long long type, data; unsigned gi, ci; } Event;
int nvmlEventSetCreate(void **events) { *events = (void *)1; return SUCCESS; }
int nvmlDeviceRegisterEvents(Device d, unsigned long long types, void *events)
{
    (void)d, (void)types, (void)events;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *events, Event *event, unsigned timeout_ms)
{
    static char told[64];
    char text[64];
    int device, xid;
    (void)events, (void)timeout_ms;
    if (look("xid", text, sizeof text) != SUCCESS || !strcmp(text, told) || sscanf(text, "%d %d", &device, &xid) != 2)
        return TIMEOUT;
    strcpy(told, text);
    memset(event, 0, sizeof *event);
    event->device = (Device)(intptr_t)(device + 1);
    event->type = 8;
    event->data = (unsigned long long)xid;
    return SUCCESS;
}
int nvmlDeviceGetP2PStatus(Device a, Device b, int which, int *status)
{
    unsigned found = 0;
    (void)b; (void)which;
    int result = small(a, "p2p", &found);
    *status = (int)found;
    return result;
}
int nvmlDeviceGetNvLinkState(Device d, unsigned link, int *active)
{
    char key[32];
    unsigned found = 0;
    snprintf(key, sizeof key, "nvlink%u", link);
    int result = small(d, key, &found);
    *active = (int)found;
    return result;
}
int nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *version)
{
    (void)link;
    return small(d, "nvlink_version", version);
}
int nvmlDeviceGetNvLinkErrorCounter(Device d, unsigned link, int which, unsigned long long *count)
{
    static const char *const names[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
    char key[32];
    snprintf(key, sizeof key, "nvlink%u_%s", link, which < 5 ? names[which] : "?");
    return number(d, key, count);
}
