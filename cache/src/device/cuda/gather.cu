// Moves rows between two blocks of device memory, as `list` says by its kind: SOURCES, row list[k] of
// `from` to row first + k of `to`, where list[k] may be NO_ROW for none; TARGETS, row k of `from` to row
// list[k] of `to`; PAIRS, row list[2k] of `from` to row list[2k + 1] of `to`. No two moves have the
// same target, and the blocks do not overlap. (A batch is told by one word a row and not two: the list is
// made on the host and travels for every batch.)
//
// `n_lanes` neighbouring threads (a power of two, at most a warp) share a row, so a block of 256
// threads has 8 rows in flight or more, and a thread up to four accesses of its row. Accesses are
// of 16 bytes where source and target can be aligned together, else of 8, 4, 2 or 1; the bytes before
// and after the aligned part are moved one by one. Any width works.

typedef unsigned char Byte;

template <typename Unit>
__device__ __forceinline__ void copy_in_units(const Byte* __restrict__ from,
                                              Byte* __restrict__ to, unsigned n_bytes,
                                              unsigned lane, unsigned n_lanes) {
    unsigned head = (unsigned)((0 - (size_t)to) & (sizeof(Unit) - 1));
    head = head < n_bytes ? head : n_bytes;
    for (unsigned i = lane; i < head; i += n_lanes) to[i] = from[i];

    const unsigned n_units = (n_bytes - head) / (unsigned)sizeof(Unit);
    const Unit* __restrict__ source = (const Unit*)(from + head);
    Unit* __restrict__ target = (Unit*)(to + head);
    unsigned i = lane;
    for (; i + 3 * n_lanes < n_units; i += 4 * n_lanes) {
        const Unit a = source[i];
        const Unit b = source[i + n_lanes];
        const Unit c = source[i + 2 * n_lanes];
        const Unit d = source[i + 3 * n_lanes];
        target[i] = a;
        target[i + n_lanes] = b;
        target[i + 2 * n_lanes] = c;
        target[i + 3 * n_lanes] = d;
    }
    for (; i < n_units; i += n_lanes) target[i] = source[i];

    const unsigned tail = head + n_units * (unsigned)sizeof(Unit);
    for (unsigned j = tail + lane; j < n_bytes; j += n_lanes) to[j] = from[j];
}

enum { SOURCES = 0, TARGETS = 1, PAIRS = 2 };
static const unsigned NO_ROW = 0xffffffffu;

extern "C" __global__ void move_rows(const Byte* __restrict__ from, Byte* __restrict__ to,
                                     const unsigned* __restrict__ list, unsigned n_moves,
                                     unsigned kind, unsigned first, unsigned row_bytes,
                                     unsigned n_lanes) {
    const unsigned lane = threadIdx.x & (n_lanes - 1);
    const unsigned rows_per_block = blockDim.x / n_lanes;
    const size_t step = (size_t)gridDim.x * rows_per_block;
    size_t k = (size_t)blockIdx.x * rows_per_block + threadIdx.x / n_lanes;
    for (; k < n_moves; k += step) {
        const unsigned word = list[kind == PAIRS ? 2 * k : k];
        if (kind == SOURCES && word == NO_ROW) continue;
        const size_t from_row = kind == TARGETS ? k : word;
        const size_t to_row = kind == SOURCES ? first + k : kind == TARGETS ? word : list[2 * k + 1];
        const Byte* source = from + from_row * row_bytes;
        Byte* target = to + to_row * row_bytes;
        const size_t apart = (size_t)source ^ (size_t)target;
        if ((apart & 15) == 0) copy_in_units<uint4>(source, target, row_bytes, lane, n_lanes);
        else if ((apart & 7) == 0) copy_in_units<uint2>(source, target, row_bytes, lane, n_lanes);
        else if ((apart & 3) == 0) copy_in_units<unsigned>(source, target, row_bytes, lane, n_lanes);
        else if ((apart & 1) == 0) copy_in_units<unsigned short>(source, target, row_bytes, lane, n_lanes);
        else copy_in_units<Byte>(source, target, row_bytes, lane, n_lanes);
    }
}
