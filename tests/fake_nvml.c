/* NVIDIA's management library for machines that have none: it tells of the GPUs that the file $FAKE_NVML lists.
 *
 *   init CODE                                  what nvmlInit returns
 *   count CODE                                 what nvmlDeviceGetCount returns
 *   gpu UUID MEMORY_MIB CAPABILITY CODE NAME   CODE: what every question about it returns, and 0 where it is well
 *   mig GPU UUID MEMORY_MIB                    a slice of the GPU of this number, which is in MIG mode then
 *
 * Numbers of errors and the signatures are nvml.h's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, MOST = 64 };

typedef struct {
    char uuid[96], name[96];
    unsigned long long bytes;
    int major, minor, code, parent; /* parent: of a slice, else -1 */
} device;

static device devices[MOST], slices[MOST];
static unsigned int gpus, cuts, counting;

int nvmlInit_v2(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    int code = 0;
    gpus = cuts = counting = 0;
    while (file && fgets(line, sizeof line, file)) {
        device one = {.parent = -1};
        sscanf(line, "init %d", &code);
        sscanf(line, "count %u", &counting);
        if (sscanf(line, "gpu %95s %llu %d.%d %d %95[^\n]", one.uuid, &one.bytes, &one.major, &one.minor,
                   &one.code, one.name) == 6)
            one.bytes <<= 20, devices[gpus++] = one;
        if (sscanf(line, "mig %d %95s %llu", &one.parent, one.uuid, &one.bytes) == 3) {
            device *whole = &devices[one.parent];
            one.bytes <<= 20, one.major = whole->major, one.minor = whole->minor;
            snprintf(one.name, sizeof one.name, "%.60s MIG 1g", whole->name);
            slices[cuts++] = one;
        }
    }
    if (file)
        fclose(file);
    return code;
}

const char *nvmlErrorString(int code) {
    return code == 18 ? "Driver/library version mismatch" : code == 15 ? "GPU is lost" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned int *count) { return *count = gpus, (int)counting; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **found) {
    if (index >= gpus)
        return INVALID;
    *found = &devices[index];
    return devices[index].code == 15 ? 15 : OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **found) {
    for (unsigned int i = 0; i < gpus; i++)
        if (!strcmp(devices[i].uuid, uuid))
            return *found = &devices[i], OK;
    for (unsigned int i = 0; i < cuts; i++)
        if (!strcmp(slices[i].uuid, uuid))
            return *found = &slices[i], OK;
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(device *one, char *text, unsigned int room) {
    return one->code ? one->code : (snprintf(text, room, "%s", one->uuid), OK);
}

int nvmlDeviceGetName(device *one, char *text, unsigned int room) {
    return one->code ? one->code : (snprintf(text, room, "%s", one->name), OK);
}

int nvmlDeviceGetMemoryInfo(device *one, unsigned long long *found) {
    found[0] = found[1] = one->bytes, found[2] = 0;
    return one->code;
}

int nvmlDeviceGetCudaComputeCapability(device *one, int *major, int *minor) {
    return *major = one->major, *minor = one->minor, one->code;
}

int nvmlDeviceIsMigDeviceHandle(device *one, unsigned int *is) { return *is = one->parent >= 0, OK; }

int nvmlDeviceGetMigMode(device *one, unsigned int *now, unsigned int *next) {
    *now = *next = 0;
    for (unsigned int i = 0; i < cuts; i++)
        *now = *next |= &devices[slices[i].parent] == one;
    return one->parent >= 0 ? INVALID : OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device *one, unsigned int *count) { return (void)one, *count = 7, OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(device *one, unsigned int index, device **found) {
    for (unsigned int i = 0; i < cuts; i++)
        if (&devices[slices[i].parent] == one && index-- == 0)
            return *found = &slices[i], OK;
    return NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(device *one, unsigned int *found) {
    found[0] = 97, found[1] = 40;
    return one->parent >= 0 ? NOT_SUPPORTED : one->code;
}
