/* Stand-ins for NVIDIA's libraries, for tests on machines without a GPU. They compute on the
 * processor, so that what is computed can be right, and are told by the environment to go wrong:
 *
 *   STAND_IN_GPUS=2  STAND_IN_CUINIT=803  STAND_IN_FREE_MIB=300  STAND_IN_CAPABILITY=30
 *   STAND_IN_CUBLAS, _NVRTC, _CUDNN, _CUDA, _PEER, _WAIT, _REASONS = wrong | zeros | crash | hang |
 *   STATUS, STAND_IN_HEAT, in degrees, and STAND_IN_SLOW_MS, of the first card.
 *
 *   STAND_IN_FLIP=1:fp16, one bit of that GPU's random products in that format is another, each time;
 *   STAND_IN_FLAKY=1:fp16, the first time only.
 *
 *   STAND_IN_VERSION=1103, of cuBLAS. STAND_IN_BROKEN=14: products of that cudaDataType_t are wrong,
 *   and STAND_IN_UNSUPPORTED=14: cuBLAS has none.
 *
 * Where the environment is empty, one of these may be built in: -DTOLD='"STAND_IN_CUDA=46"'.
 *
 * One source; -DLIBRARY_cuda, -DLIBRARY_cudart ... choose what is built of it. */
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef TOLD
#define TOLD ""
#endif

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    size_t length = strlen(name);
    if (value)
        return value;
    return !strncmp(TOLD, name, length) && TOLD[length] == '=' ? TOLD + length + 1 : NULL;
}

static int number(const char *name, int otherwise)
{
    const char *value = setting(name);
    return value && *value ? atoi(value) : otherwise;
}

/* What goes wrong: does it here if that is to crash or hang, returns a status if one is told. */
static int trouble(const char *name)
{
    const char *value = setting(name);
    if (!value)
        return 0;
    if (!strcmp(value, "crash"))
        raise(SIGSEGV);
    if (!strcmp(value, "hang"))
        for (;;)
            pause();
    return atoi(value);
}

static int asked(const char *name, const char *word)
{
    const char *value = setting(name);
    return value && !strcmp(value, word);
}

static const size_t MIB = 1 << 20;
/* What stands before a format in the code of NVRTC's stand-in. */
#define AGREE "// agree "
static int handle_of_stand_in;

#ifdef LIBRARY_cuda
static int current;
int cuInit(unsigned flags) { return (void)flags, number("STAND_IN_CUINIT", 0); }
int cuDriverGetVersion(int *version) { return *version = 12020, 0; }
int cuDeviceGetCount(int *count) { return *count = number("STAND_IN_GPUS", 2), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    return snprintf(name, size, "Stand-in GPU"), 0;
}
int cuDeviceGetPCIBusId(char *name, int size, int device)
{
    return snprintf(name, size, "0000:%02X:00.0", device), 0;
}
int cuDeviceGetUuid(char *raw, int device) { return memset(raw, device + 1, 16), 0; }
int cuDeviceTotalMem_v2(size_t *total, int device) { return (void)device, *total = 8192 * MIB, 0; }
int cuDeviceGetAttribute(int *value, int which, int device)
{
    (void)device;
    switch (which) {
    case 10: *value = 32; break;
    case 13: *value = 1500000; break;
    case 16: *value = 20; break;
    case 36: *value = 5000000; break;
    case 37: *value = 256; break;
    case 38: *value = 4 << 20; break;
    case 75: *value = number("STAND_IN_CAPABILITY", 75) / 10; break;
    case 76: *value = number("STAND_IN_CAPABILITY", 75) % 10; break;
    default: *value = 0;
    }
    return 0;
}
int cuGetErrorName(int status, const char **name)
{
    *name = status == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
          : status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == 46 ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : "CUDA_ERROR_OF_STAND_IN";
    return 0;
}
int cuGetErrorString(int status, const char **text)
{
    *text = status == 46 ? "CUDA-capable device(s) is/are busy or unavailable"
          : status == 2 ? "out of memory" : "an error of a stand-in";
    return 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    return (void)device, *flags = 0, *active = 0, 0;
}
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { return (void)device, (void)flags, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    return current = device, *context = &current, trouble("STAND_IN_CUDA");
}
int cuCtxGetCurrent(void **context) { return *context = NULL, 0; }
int cuCtxSetCurrent(void *context) { return (void)context, 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total)
{
    return *free = number("STAND_IN_FREE_MIB", 8000) * MIB, *total = 8192 * MIB, 0;
}
int cuMemAlloc_v2(void **place, size_t size) { return *place = malloc(size), 0; }
int cuMemFree_v2(void *place) { return free(place), 0; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return memcpy(to, from, size), 0; }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t size) { return memcpy(to, from, size), 0; }
int cuModuleLoadData(void **module, const char *code)
{
    *module = (void *)code;
    return strstr(code, "stand-in") ? 0 : 209;
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return strcmp(name, strstr(module, AGREE) ? "gpufleet_agree" : "gpufleet_mix") ? 500 : 0;
}
int cuModuleUnload(void *module) { return (void)module, 0; }

#include "agree.h"
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
    (void)function, (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    const char *format = strstr(function, AGREE);
    if (format)
        return agree(format + strlen(AGREE), *(unsigned *)arguments[0], *(unsigned *)arguments[1],
                     *(unsigned *)arguments[2], *(unsigned long long **)arguments[3]);
    const unsigned *in = *(unsigned **)arguments[0];
    unsigned *out = *(unsigned **)arguments[1], n = *(unsigned *)arguments[2];
    int status = trouble("STAND_IN_KERNEL");
    for (unsigned i = 0; i < n && i < gx * bx; i++)
        out[i] = in[i] * 2654435761u + (i ^ (in[i] >> 7));
    if (asked("STAND_IN_KERNEL", "wrong"))
        out[7] ^= 1;
    return status;
}
#endif

#ifdef LIBRARY_cudart
/* Each thread has its own. */
static __thread int device;
const char *cudaGetErrorName(int status)
{
    return status == 2 ? "cudaErrorMemoryAllocation" : status == 35 ? "cudaErrorInsufficientDriver"
         : "cudaErrorOfStandIn";
}
int cudaGetLastError(void) { return 0; }
int cudaSetDevice(int index) { return device = index, trouble("STAND_IN_CUDA"); }
int cudaGetDevice(int *index) { return *index = device, 0; }
int cudaFree(void *place) { return free(place), 0; }
int cudaMalloc(void **place, size_t size) { return *place = malloc(size), 0; }
int cudaMemGetInfo(size_t *free, size_t *total)
{
    int first = number("STAND_IN_FREE_MIB", 8000);
    return *free = (device ? 8000 : first) * MIB, *total = 8192 * MIB, 0;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    /* A direction in which no byte arrives. */
    if (size > MIB && kind == number("STAND_IN_DEAD_WAY", 0))
        return 0;
    memcpy(to, from, size);
    if (kind == 3 && asked("STAND_IN_MEMORY", "wrong"))
        ((char *)to)[size - 4] ^= 1;
    if (kind == 3 && asked("STAND_IN_MEMORY", "middle"))
        ((char *)to)[size / 2] ^= 1;
    /* A cell that loses a bit: in the fourth of the blocks that fill the memory. */
    static int blocks;
    if (kind == 3 && size == number("STAND_IN_BLOCK_MIB", 64) * MIB && asked("STAND_IN_MEMORY", "cell") && ++blocks == 4)
        ((char *)to)[size / 3] ^= 1;
    return 0;
}
/* Only the first card is slow or fails. */
int cudaDeviceSynchronize(void)
{
    if (device == 0)
        usleep(1000 * number("STAND_IN_SLOW_MS", 0));
    return device == 0 ? trouble("STAND_IN_WAIT") : 0;
}
/* A stream of its own is not the one in which products are queued. */
int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return *stream = &handle_of_stand_in, flags == 1 ? 0 : 1;
}
int cudaStreamSynchronize(void *stream) { return stream ? 0 : cudaDeviceSynchronize(); }
int cudaSetDeviceFlags(unsigned flags) { return flags == 4 ? 0 : 1; }
int cudaDeviceGetAttribute(int *value, int attribute, int gpu)
{
    return (void)gpu, *value = attribute == 18 ? number("STAND_IN_INTEGRATED", 0) : 0, 0;
}
int cudaDeviceGetPCIBusId(char *name, int size, int gpu)
{
    return snprintf(name, size, "0000:%02X:00.0", gpu), 0;
}
int cudaDeviceReset(void) { return 0; }
int cudaDeviceCanAccessPeer(int *can, int a, int b)
{
    return *can = a != b && !asked("STAND_IN_PEER", "apart"), 0;
}
int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    return (void)peer, (void)flags, number("STAND_IN_PEER_ACCESS", 704);
}
int cudaHostAlloc(void **place, size_t size, unsigned flags)
{
    return (void)flags, *place = malloc(size), 0;
}
int cudaFreeHost(void *place) { return free(place), 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream)
{
    /* A direction in which a stream's copies are lost. */
    return stream && kind == number("STAND_IN_LOST_WAY", 0) ? 0 : cudaMemcpy(to, from, size, kind);
}
int cudaMemset(void *to, int byte, size_t size) { return memset(to, byte, size), 0; }
int cudaMemcpyPeer(void *to, int a, const void *from, int b, size_t size)
{
    (void)a, (void)b;
    if (asked("STAND_IN_PEER", "nothing"))
        return 0;
    memcpy(to, from, size);
    if (asked("STAND_IN_PEER", "wrong"))
        memset(to, 0, size);
    return trouble("STAND_IN_PEER");
}
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *stream)
{
    (void)stream;
    int status = cudaMemcpyPeer(to, a, from, b, size);
    /* A link that changes a bit in one direction. */
    if (asked("STAND_IN_PEER", "bit") && a > b)
        ((char *)to)[size / 3] ^= 1;
    return status;
}
#endif

#if defined LIBRARY_cublas || defined LIBRARY_cublasLt
/* An element of one of NVIDIA's types (cudaDataType_t). */
static double element(const void *data, int type, size_t at)
{
    const unsigned char byte = ((const unsigned char *)data)[at];
    const unsigned half = ((const unsigned short *)data)[at];
    unsigned bits = half << 16;
    float upper;
    switch (type) {
    case 0: return ((const float *)data)[at];
    case 1: return ((const double *)data)[at];
    case 2: return ldexp((half & 0x3ff) + (half & 0x7c00 ? 0x400 : 0),
                         (half & 0x7c00 ? half >> 10 & 31 : 1) - 25) * (half & 0x8000 ? -1 : 1);
    case 3: return ((const signed char *)data)[at];
    case 14: return memcpy(&upper, &bits, 4), upper;
    case 28: return ldexp((byte & 7) + (byte & 0x78 ? 8 : 0), (byte & 0x78 ? byte >> 3 & 15 : 1) - 10)
                    * (byte & 0x80 ? -1 : 1);
    case 29: return ldexp((byte & 3) + (byte & 0x7c ? 4 : 0), (byte & 0x7c ? byte >> 2 & 31 : 1) - 17)
                    * (byte & 0x80 ? -1 : 1);
    }
    return NAN;
}
static int multiply(int ta, int tb, int m, int n, int k, double alpha, const void *a, int at, int la,
                    const void *b, int bt, int lb, double beta, void *c, int ct, int lc)
{
    if (number("STAND_IN_UNSUPPORTED", -1) == at || (ct != 0 && ct != 1 && ct != 10))
        return 15;
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            size_t to = row + (size_t)column * lc;
            double sum = beta ? NAN : 0;
            for (int i = 0; i < k; i++)
                sum += element(a, at, ta ? i + (size_t)row * la : row + (size_t)i * la)
                     * element(b, bt, tb ? column + (size_t)i * lb : i + (size_t)column * lb);
            if (to == 5 && number("STAND_IN_BROKEN", -1) == at)
                sum += 1;
            if (ct == 0) ((float *)c)[to] = alpha * sum;
            if (ct == 1) ((double *)c)[to] = alpha * sum;
            if (ct == 10) ((int *)c)[to] = alpha * sum;
        }
    return 0;
}
#endif

#ifdef LIBRARY_cublasLt
/* A layout is its type, rows, columns and lead; a product the types and what is transposed. */
struct layout { int type; unsigned long rows, columns; long lead; };
struct product { int compute, scale, ta, tb; };
struct choice { unsigned long algorithm[8]; size_t space; int status; float waves; int rest[4]; };
int cublasLtCreate(void **handle) { return *handle = &handle_of_stand_in, trouble("STAND_IN_LT"); }
int cublasLtMatmulDescCreate(void **made, int compute, int scale)
{
    struct product *how = calloc(1, sizeof *how);
    return how->compute = compute, how->scale = scale, *made = how, 0;
}
int cublasLtMatmulDescSetAttribute(struct product *how, int which, const int *value, size_t size)
{
    if (size != 4 || (which != 3 && which != 4))
        return 7;
    return *(which == 3 ? &how->ta : &how->tb) = *value, 0;
}
int cublasLtMatrixLayoutCreate(void **made, int type, unsigned long rows, unsigned long columns, long lead)
{
    struct layout *layout = calloc(1, sizeof *layout);
    *layout = (struct layout){type, rows, columns, lead};
    return *made = layout, 0;
}
int cublasLtMatmulPreferenceCreate(void **made) { return *made = &handle_of_stand_in, 0; }
int cublasLtMatmulPreferenceSetAttribute(void *p, int which, const unsigned long *value, size_t size)
{
    return (void)p, (void)value, which == 1 && size == 8 ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, struct product *how, struct layout *a,
                                   struct layout *b, struct layout *c, struct layout *d, void *preference,
                                   int wanted, struct choice *choice, int *count)
{
    (void)handle, (void)preference, (void)wanted;
    /* FP8 is multiplied with the first operand transposed only, and by sixteen elements. */
    if (how->compute != 68 || how->scale || how->ta != 1 || how->tb || a->rows % 16 || a->lead % 16
        || c->type != d->type || (a->type == 29 && b->type == 29))
        return 15;
    return choice->algorithm[0] = 42, choice->status = 0, *count = 1, 0;
}
int cublasLtMatmul(void *handle, struct product *how, const float *alpha, const void *a,
                   struct layout *al, const void *b, struct layout *bl, const float *beta, const void *c,
                   struct layout *cl, void *d, struct layout *dl, const struct choice *choice, void *space,
                   size_t size, void *stream)
{
    (void)handle, (void)c, (void)cl, (void)size, (void)stream;
    return choice->algorithm[0] != 42 || !space ? 7
         : multiply(how->ta, how->tb, dl->rows, dl->columns, al->rows, *alpha, a, al->type, al->lead, b,
                    bl->type, bl->lead, *beta, d, dl->type, dl->lead);
}
#endif

#ifdef LIBRARY_cublas
int cublasCreate_v2(void **handle) { return *handle = &handle_of_stand_in, trouble("STAND_IN_CUBLAS"); }
int cublasDestroy_v2(void *handle) { return (void)handle, 0; }
int cublasSetStream_v2(void *handle, void *stream) { return (void)handle, stream ? 0 : 1; }
/* By columns, as BLAS does: element (row, column) of a matrix stands at row + column * lead. */
int cublasSgemm_v2(void *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                   const float *a, int la, const float *b, int lb, const float *beta, float *c,
                   int lc)
{
    (void)handle, (void)ta, (void)tb;
    int swapped = asked("STAND_IN_CUBLAS", "transposed");
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0;
            for (int i = 0; i < k; i++)
                sum += swapped ? a[i + row * la] * b[i + column * lb]
                               : a[row + i * la] * b[i + column * lb];
            c[row + column * lc] = *alpha * sum + (*beta ? *beta * c[row + column * lc] : 0);
        }
    /* Of so many products one is wrong, as on a card that is slightly broken. */
    static int products;
    int every = number("STAND_IN_WRONG_EVERY", 0);
    if (asked("STAND_IN_CUBLAS", "wrong") || (every && ++products % every == 0))
        c[5] += 1;
    if (asked("STAND_IN_CUBLAS", "zeros"))
        memset(c, 0, sizeof *c * m * n);
    return 0;
}
int cublasGetProperty(int which, int *value)
{
    int version = number("STAND_IN_VERSION", 1204);
    return *value = which == 0 ? version / 100 : which == 1 ? version % 100 : 0, 0;
}
int cublasDgemm_v2(void *handle, int ta, int tb, int m, int n, int k, const double *alpha,
                   const double *a, int la, const double *b, int lb, const double *beta, double *c,
                   int lc)
{
    return (void)handle, multiply(ta, tb, m, n, k, *alpha, a, 1, la, b, 1, lb, *beta, c, 1, lc);
}
int cublasGemmEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                 int at, int la, const void *b, int bt, int lb, const void *beta, void *c, int ct,
                 int lc, int compute, int algorithm)
{
    (void)handle;
    int new = number("STAND_IN_VERSION", 1204) >= 1100;
    if (new ? compute < 64 || algorithm != -1 : compute >= 64)
        return 7;
    if (at == 28 || at == 29 || at != bt || ct != (at == 3 ? 10 : 0)
        || (at == 3) != (compute == 72 || compute == 10))
        return 15;
    double one = at == 3 ? *(int *)alpha : *(float *)alpha;
    double zero = at == 3 ? *(int *)beta : *(float *)beta;
    return multiply(ta, tb, m, n, k, one, a, at, la, b, bt, lb, zero, c, ct, lc);
}
int cublasSetPointerMode_v2(void *handle, int mode) { return (void)handle, (void)mode, 0; }
int cublasSaxpy_v2(void *handle, int n, const float *alpha, const float *x, int ix, float *y, int iy)
{
    (void)handle;
    for (int i = 0; i < n; i++)
        y[i * iy] += *alpha * x[i * ix];
    return 0;
}
int cublasSasum_v2(void *handle, int n, const float *x, int ix, float *result)
{
    (void)handle;
    *result = 0;
    if (asked("STAND_IN_CUBLAS", "sums"))
        return 0;
    for (int i = 0; i < n; i++)
        *result += x[i * ix] < 0 ? -x[i * ix] : x[i * ix];
    return 0;
}
#endif

#ifdef LIBRARY_nvrtc
static const char PTX[] = "// stand-in\n.version 7.8\n.target sm_52\n.visible .entry gpufleet_mix(";
static char code[256];
int nvrtcVersion(int *major, int *minor)
{
    int version = number("STAND_IN_NVRTC_VERSION", 1202);
    return *major = version / 100, *minor = version % 100, 0;
}
const char *nvrtcGetErrorString(int s) { return s == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, void *h, void *n)
{
    (void)name, (void)count, (void)h, (void)n;
    /* The kernel of random products begins with its format, in a comment. */
    snprintf(code, sizeof code, "%s", PTX);
    if (!strncmp(source, "// ", 3))
        snprintf(code, sizeof code, "%s\n%s%.*s", PTX, AGREE, (int)strcspn(source + 3, "\n"), source + 3);
    return *program = &handle_of_stand_in, trouble("STAND_IN_NVRTC");
}
int nvrtcCompileProgram(void *program, int count, const char **options)
{
    (void)program;
    /* As a release that does not know the GPU's own machine code. */
    if (count && !strncmp(options[0], "--gpu-architecture=sm_", 22) && getenv("STAND_IN_PTX"))
        return 5;
    return asked("STAND_IN_NVRTC", "compilation") ? 6 : 0;
}
int nvrtcGetPTXSize(void *program, size_t *size) { return (void)program, *size = strlen(code) + 1, 0; }
int nvrtcGetPTX(void *program, char *text) { return (void)program, strcpy(text, code), 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { return nvrtcGetPTXSize(program, size); }
int nvrtcGetCUBIN(void *program, char *text) { return nvrtcGetPTX(program, text); }
#endif

#ifdef LIBRARY_cudnn
static int shape[4], filter[4];
size_t cudnnGetVersion(void) { return 8907; }
const char *cudnnGetErrorString(int s) { return s == 1 ? "CUDNN_STATUS_NOT_INITIALIZED" : "CUDNN"; }
int cudnnCreate(void **handle) { return *handle = shape, trouble("STAND_IN_CUDNN"); }
int cudnnCreateTensorDescriptor(void **made) { return *made = shape, 0; }
int cudnnCreateFilterDescriptor(void **made) { return *made = filter, 0; }
int cudnnCreateConvolutionDescriptor(void **made) { return *made = shape, 0; }
int cudnnSetTensor4dDescriptor(void *d, int format, int type, int n, int c, int h, int w)
{
    (void)d, (void)format, (void)type;
    return shape[0] = n, shape[1] = c, shape[2] = h, shape[3] = w, 0;
}
int cudnnSetFilter4dDescriptor(void *d, int type, int format, int k, int c, int h, int w)
{
    (void)d, (void)format, (void)type;
    return filter[0] = k, filter[1] = c, filter[2] = h, filter[3] = w, 0;
}
int cudnnSetConvolution2dDescriptor(void *d, int ph, int pw, int u, int v, int dh, int dw, int mode,
                                    int type)
{
    (void)d, (void)type;
    return ph == 1 && pw == 1 && u == 1 && v == 1 && dh == 1 && dw == 1 && mode == 1 ? 0 : 3;
}
int cudnnGetConvolutionForwardWorkspaceSize(void *h, void *x, void *w, void *c, void *y, int algo,
                                            size_t *size)
{
    (void)h, (void)x, (void)w, (void)c, (void)y, (void)algo;
    return *size = 0, 0;
}
int cudnnConvolutionForward(void *handle, const float *alpha, void *xd, const float *x, void *wd,
                            const float *w, void *cd, int algo, void *space, size_t size,
                            const float *beta, void *yd, float *y)
{
    (void)handle, (void)xd, (void)wd, (void)cd, (void)algo, (void)space, (void)size, (void)beta, (void)yd;
    int C = shape[1], H = shape[2], W = shape[3], S = filter[2];
    for (int k = 0; k < filter[0]; k++)
        for (int r = 0; r < H; r++)
            for (int q = 0; q < W; q++) {
                float sum = 0;
                for (int c = 0; c < C; c++)
                    for (int i = 0; i < S; i++)
                        for (int j = 0; j < S; j++) {
                            int row = r + i - 1, column = q + j - 1;
                            if (row >= 0 && row < H && column >= 0 && column < W)
                                sum += w[((k * C + c) * S + i) * S + j] * x[(c * H + row) * W + column];
                        }
                y[(k * H + r) * W + q] = *alpha * sum;
            }
    if (asked("STAND_IN_CUDNN", "wrong"))
        y[3] += 0.5f;
    return 0;
}
#endif

#ifdef LIBRARY_nvml
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *place, void **device)
{
    return *device = (void *)place, 0;
}
/* Cold at first, hot after that, as the stress would make it. */
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees)
{
    static int asked;
    (void)device, (void)sensor;
    return *degrees = 40 + (asked++ >= number("STAND_IN_GPUS", 2) ? number("STAND_IN_HEAT", 0) : 0), 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz)
{
    return (void)device, (void)kind, *mhz = 1400, 0;
}
/* A link that stays at the first generation under load, or is not reported. */
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *value)
{
    return (void)device, *value = number("STAND_IN_LINK_GENERATION", 4), trouble("STAND_IN_LINK");
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *value)
{
    return (void)device, *value = 4, trouble("STAND_IN_LINK");
}
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *value)
{
    return (void)device, *value = 16, trouble("STAND_IN_LINK");
}
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *value)
{
    return nvmlDeviceGetCurrPcieLinkWidth(device, value);
}
/* This process with what its context takes, and STAND_IN_OTHERS other ones. */
struct program { unsigned pid; unsigned long long held; unsigned instance, part; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct program *programs)
{
    (void)device;
    unsigned others = number("STAND_IN_OTHERS", 0);
    if (others + 1 > *count)
        return *count = others + 1, 7;
    for (*count = 0; *count <= others; ++*count)
        programs[*count] = (struct program){
            getpid() + *count, number("STAND_IN_VIRTUAL", 0) ? -1ULL : 192 * MIB, -1, -1};
    return trouble("STAND_IN_PROGRAMS");
}
/* A desktop, with STAND_IN_DRAWN MiB. */
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct program *programs)
{
    (void)device;
    int drawn = number("STAND_IN_DRAWN", 0);
    if ((*count = drawn > 0))
        *programs = (struct program){getppid(), drawn * MIB, -1, -1};
    return 0;
}
/* A share of a GPU, whose driver does not say how much memory a process has. */
int nvmlDeviceGetVirtualizationMode(void *device, unsigned *mode)
{
    return (void)device, *mode = number("STAND_IN_VIRTUAL", 0) ? 2 : 0, 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { return (void)device, *mw = 70000, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    return (void)device, *reasons = number("STAND_IN_THROTTLE", 0), trouble("STAND_IN_REASONS");
}
#endif
