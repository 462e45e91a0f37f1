// A CUDA driver and NVRTC over host memory, for tests. It runs the kernel's own source.
//
// Work is put off for as long as CUDA allows: nothing of a stream is done until someone waits for
// it, and then only up to what is waited for. So a wait that is missing on the host (staging is
// filled while it is copied) or between streams (rows are moved before they have landed, or
// overwritten before they were moved) gives wrong bytes. It ends the process when memory is freed
// that work still needs, when a write has passed the end of an allocation, and, by the flags that
// it is compiled with, on a misaligned access.
//
// SIMULATED_FAILURE=N lets the Nth copy or launch fail, and all work after it, as a device does
// that has fallen off the bus. SIMULATED_DEAF=host makes waits of the host for events return at
// once, and SIMULATED_DEAF=streams those between streams: tests must notice either.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Dimensions { unsigned x, y, z; };
static Dimensions threadIdx, blockIdx, blockDim, gridDim;
#define __device__
#define __global__
#define __forceinline__ inline
#include "gather.cu"

typedef int Result;
enum { Ok = 0, Invalid = 1, OutOfMemory = 2, LaunchFailed = 719 };

static void require(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "simulated driver: %s\n", what);
    abort();
}

struct Work {
    std::function<void()> run;
    const void* host = nullptr;
    size_t host_bytes = 0;
};
struct Stream {
    std::deque<Work> work;
    uint64_t n_done = 0;
    uint64_t end() const { return n_done + work.size(); }
};
struct Event { Stream* stream = nullptr; uint64_t until = 0; };

static std::map<Stream*, bool> streams;

static void finish(Stream* stream, uint64_t until) {
    while (stream->n_done < until && !stream->work.empty()) {
        std::function<void()> run = stream->work.front().run;
        stream->work.pop_front();
        stream->n_done++;
        run();
    }
}
static void put_off(Stream* stream, std::function<void()> run, const void* host = nullptr,
                    size_t host_bytes = 0) {
    require(streams.count(stream), "a stream that is not there");
    stream->work.push_back({run, host, host_bytes});
}
static bool fails() {
    static const char* at = getenv("SIMULATED_FAILURE");
    static long n_calls = 0;
    return at && ++n_calls >= atol(at);
}

static bool is_deaf(const char* to) {
    static const char* deaf = getenv("SIMULATED_DEAF");
    return deaf && !strcmp(deaf, to);
}

// Allocations lie between bytes that nobody may write.
static const size_t FENCE = 256;
static std::map<uint64_t, size_t> blocks;
static uint64_t allocate(size_t bytes) {
    char* block = (char*)aligned_alloc(256, (bytes + 2 * FENCE + 255) / 256 * 256);
    memset(block, 0xa5, bytes + 2 * FENCE);
    blocks[(uint64_t)(block + FENCE)] = bytes;
    return (uint64_t)(block + FENCE);
}
static void release(uint64_t at) {
    require(blocks.count(at), "freed what was not allocated");
    const unsigned char* start = (unsigned char*)at;
    for (size_t i = 1; i <= FENCE; i++) {
        require(start[-(ptrdiff_t)i] == 0xa5, "a write before an allocation");
        require(start[blocks[at] + i - 1] == 0xa5, "a write past an allocation");
    }
    blocks.erase(at);
    free((char*)at - FENCE);
}
static void inside(uint64_t at, size_t bytes) {
    auto block = blocks.upper_bound(at);
    require(block != blocks.begin(), "no such device memory");
    --block;
    require(at + bytes <= block->first + block->second, "a copy past device memory");
}

extern "C" {
Result cuInit(unsigned) { return Ok; }
Result cuGetErrorString(Result, const char** text) { *text = "simulated"; return Ok; }
Result cuGetErrorName(Result, const char** text) { *text = "SIMULATED"; return Ok; }
Result cuDeviceGetCount(int* n) { *n = 1; return Ok; }
Result cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal ? 101 : Ok; }
Result cuDeviceGetName(char* name, int len, int) { snprintf(name, len, "Simulated"); return Ok; }
Result cuDeviceGetAttribute(int* value, int, int) { *value = 1; return Ok; }
static int context;
static thread_local void* current;
Result cuDevicePrimaryCtxRetain(void** out, int) { *out = &context; return Ok; }
Result cuDevicePrimaryCtxRelease_v2(int) { return Ok; }
Result cuCtxGetCurrent(void** out) { *out = current; return Ok; }
Result cuCtxSetCurrent(void* to) { current = to; return Ok; }
Result cuCtxSynchronize() {
    for (auto& stream : streams) finish(stream.first, stream.first->end());
    return Ok;
}
Result cuMemGetInfo_v2(size_t* free, size_t* total) { *free = *total = 1 << 30; return Ok; }

Result cuModuleLoadData(void** module, const void* image) {
    if (strcmp((const char*)image, "simulated")) return Invalid;
    *module = &context;
    return Ok;
}
Result cuModuleUnload(void*) { return Ok; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
    *function = (void*)&move_rows;
    return strcmp(name, "move_rows") ? 500 : Ok;
}

Result cuStreamCreate(Stream** out, unsigned) { streams[*out = new Stream] = true; return Ok; }
Result cuStreamDestroy_v2(Stream* stream) {
    finish(stream, stream->end());
    streams.erase(stream);
    return Ok; // leaked, for events may still point to it
}
Result cuStreamSynchronize(Stream* stream) {
    finish(stream, stream->end());
    return Ok;
}
Result cuEventCreate(Event** out, unsigned) { *out = new Event; return Ok; }
Result cuEventDestroy_v2(Event* event) { delete event; return Ok; }
Result cuEventRecord(Event* event, Stream* stream) {
    *event = {stream, stream->end()};
    return Ok;
}
Result cuEventSynchronize(Event* event) {
    if (event->stream && !is_deaf("host")) finish(event->stream, event->until);
    return Ok;
}
Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    Event until = *event;
    if (until.stream && !is_deaf("streams"))
        put_off(stream, [=] { finish(until.stream, until.until); });
    return Ok;
}

Result cuMemAllocAsync(uint64_t* out, size_t bytes, Stream*) {
    if (bytes == 0) return Invalid;
    if (bytes > (size_t)1 << 32) return OutOfMemory;
    *out = allocate(bytes);
    return Ok;
}
Result cuMemFreeAsync(uint64_t at, Stream* stream) {
    put_off(stream, [=] { release(at); });
    return Ok;
}
Result cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    if (bytes == 0) return Invalid;
    *out = (void*)allocate(bytes);
    return Ok;
}
Result cuMemFreeHost(void* at) {
    for (auto& stream : streams)
        for (auto& work : stream.first->work) {
            const char* host = (const char*)work.host;
            require(host + work.host_bytes <= (char*)at || host >= (char*)at + blocks[(uint64_t)at],
                    "pinned memory is freed while it is copied");
        }
    release((uint64_t)at);
    return Ok;
}
Result cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, Stream* stream) {
    put_off(stream, [=] { inside(at, bytes); memset((void*)at, value, bytes); });
    return Ok;
}
Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    if (fails()) return LaunchFailed;
    put_off(stream, [=] { inside(to, bytes); memcpy((void*)to, from, bytes); }, from, bytes);
    return Ok;
}
Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    if (fails()) return LaunchFailed;
    put_off(stream, [=] {
        inside(from, bytes);
        inside(to, bytes);
        memcpy((void*)to, (void*)from, bytes);
    });
    return Ok;
}
Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    if (fails()) return LaunchFailed;
    put_off(stream, [=] { inside(from, bytes); memcpy(to, (void*)from, bytes); }, to, bytes);
    return Ok;
}
Result cuLaunchKernel(void*, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                      unsigned, Stream* stream, void** arguments, void**) {
    if (fails()) return LaunchFailed;
    if (grid == 0) return Invalid;
    const Byte* from = *(const Byte**)arguments[0];
    Byte* to = *(Byte**)arguments[1];
    const unsigned* list = *(const unsigned**)arguments[2];
    unsigned n_moves = *(unsigned*)arguments[3];
    unsigned kind = *(unsigned*)arguments[4];
    unsigned first = *(unsigned*)arguments[5];
    unsigned row_bytes = *(unsigned*)arguments[6];
    unsigned n_lanes = *(unsigned*)arguments[7];
    put_off(stream, [=] {
        inside((uint64_t)list, n_moves * (kind == PAIRS ? 2 : 1) * sizeof(unsigned));
        gridDim = {grid, 1, 1};
        blockDim = {block, 1, 1};
        for (blockIdx.x = grid; blockIdx.x-- > 0;)
            for (threadIdx.x = block; threadIdx.x-- > 0;)
                move_rows(from, to, list, n_moves, kind, first, row_bytes, n_lanes);
    });
    return Ok;
}

Result nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                          const char* const*) {
    *program = &context;
    return strstr(source, "void move_rows(") ? Ok : Invalid;
}
Result nvrtcCompileProgram(void*, int, const char* const*) { return Ok; }
Result nvrtcGetPTXSize(void*, size_t* size) { *size = sizeof "simulated"; return Ok; }
Result nvrtcGetPTX(void*, char* ptx) { strcpy(ptx, "simulated"); return Ok; }
Result nvrtcGetProgramLogSize(void*, size_t* size) { *size = 1; return Ok; }
Result nvrtcGetProgramLog(void*, char* log) { *log = 0; return Ok; }
Result nvrtcDestroyProgram(void**) { return Ok; }
}
