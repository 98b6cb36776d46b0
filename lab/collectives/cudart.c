/* A stand-in of the CUDA runtime for the stand-in of NCCL: a GPU's memory is the process's own.
 * A file `gpus` beside the library has the number of GPUs; without it there is one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaGetDeviceCount(int *count)
{
    char path[4096];
    Dl_info self;
    FILE *file = NULL;
    *count = 1;
    if (dladdr((void *)cudaGetDeviceCount, &self) && strrchr(self.dli_fname, '/')) {
        snprintf(path, sizeof path, "%.*s/gpus",
                 (int)(strrchr(self.dli_fname, '/') - self.dli_fname), self.dli_fname);
        file = fopen(path, "re");
    }
    if (file && fscanf(file, "%d", count) != 1)
        *count = 1;
    if (file)
        fclose(file);
    return *count > 0 ? 0 : 100;
}

int cudaSetDevice(int device)
{
    (void)device;
    return 0;
}

int cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)attribute, (void)device;
    *value = 0;
    return 0;
}

int cudaMalloc(void **pointer, size_t bytes)
{
    *pointer = malloc(bytes);
    return *pointer ? 0 : 2;
}

int cudaFree(void *pointer)
{
    free(pointer);
    return 0;
}

int cudaMemset(void *pointer, int value, size_t bytes)
{
    memset(pointer, value, bytes);
    return 0;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int direction)
{
    (void)direction;
    memcpy(to, from, bytes);
    return 0;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = (size_t)4 << 30;
    return 0;
}

int cudaStreamQuery(void *stream)
{
    (void)stream;
    return 0;
}

int cudaGetLastError(void)
{
    return 0;
}

int cudaDeviceSynchronize(void)
{
    return 0;
}

const char *cudaGetErrorName(int status)
{
    return status == 100 ? "cudaErrorNoDevice" : status == 2 ? "cudaErrorMemoryAllocation" : "?";
}
