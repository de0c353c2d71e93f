// mul_mat Q5_K x q8_g256, many tokens, family wgmma.
// Generated from specs/formats/q5_k.toml and templates/wgmma.cu.j2;
// edit those, then run: qgen build
//
// target      sm_90a: for sm_90 it is refused, and compiled for others its instructions do nothing
// launch      weight and activation aligned to 16 bytes, y_stride in floats; threads and dynamic shared memory
//             as said at each kernel; the grid's y is the tokens over a kernel's capacity, rounded up, no more
//             and no less; its x any number of CTAs, which share the rows: at best so many that all are there
//             at once, one a multiprocessor
// format      Q5_K: 256 elements in 176 bytes
// storage     tiled: tiles of 16 rows and a block, as qgen.repack makes them, row tiles back to back
// activation  q8_g256 in the layout q8_g256_q5_k_matrices, from quantize_activation
// traffic     every packed byte is requested once for the tokens of a CTA (read factor 1.00)
// contract    q8_g256_u256_s16: block b of a row belongs to slice b mod 16; a slice takes its blocks in
//             increasing order, in them units of 256 elements, and each term as
//             fma(factors * dx, float(integer sum), slice), terms +d*sc*sum(q*a), -dmin*mn*sum(a);
//             slices are added by halving: slice s < h takes s + h, h = slices/2 .. 1
// integers    exact: no sum of a unit exceeds 63495936
//
#include "qgen_held.cuh"
#include "qgen_slices.cuh"
#include "qgen_wgmma.cuh"

namespace {

constexpr int kTileBytes = 2816;   // bytes of a tile: sixteen rows of a block
constexpr int kSlices = 16;       // slices of K in the canonical order
constexpr int kBundle = 1;       // blocks a warp takes at once, neighbours in a slice
constexpr int kCodeWords = 16;    // code words of a thread, row and block
constexpr int kScales = 1;       // activation scales of a token and bundle
constexpr int kRecordBytes = 2432; // activation record of a bundle and eight tokens, to whole lines of 128; those of a bundle lie side by side
// The code words of thread t for one block of row `row` + 8 * half of a tile, which starts at byte b + skip of shared memory.
template <int half, int skip = 0>
__device__ __forceinline__ void block_codes(int b, [[maybe_unused]] int row, [[maybe_unused]] int t, uint32_t* q) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    uint32_t w[10];
    qgen_words16<4>(w + 0, qgen_shared + skip, from0 + 256 + half * 512);
    qgen_words16<4>(w + 4, qgen_shared + skip, from0 + 1280 + half * 512);
    qgen_words8<2>(w + 8, qgen_shared + skip, from1 + 2304 + half * 256);
    q[0] = ((w[2] & 0x0f0f0f0fu) | (w[0] << 4 & 0x10101010u));
    q[2] = ((w[2] >> 4 & 0x0f0f0f0fu) | (w[0] << 3 & 0x10101010u));
    q[1] = ((w[3] & 0x0f0f0f0fu) | (w[1] << 4 & 0x10101010u));
    q[3] = ((w[3] >> 4 & 0x0f0f0f0fu) | (w[1] << 3 & 0x10101010u));
    q[4] = ((w[4] & 0x0f0f0f0fu) | (w[0] << 2 & 0x10101010u));
    q[6] = ((w[4] >> 4 & 0x0f0f0f0fu) | (w[0] << 1 & 0x10101010u));
    q[5] = ((w[5] & 0x0f0f0f0fu) | (w[1] << 2 & 0x10101010u));
    q[7] = ((w[5] >> 4 & 0x0f0f0f0fu) | (w[1] << 1 & 0x10101010u));
    q[8] = ((w[6] & 0x0f0f0f0fu) | (w[0] & 0x10101010u));
    q[10] = ((w[6] >> 4 & 0x0f0f0f0fu) | (w[0] >> 1 & 0x10101010u));
    q[9] = ((w[7] & 0x0f0f0f0fu) | (w[1] & 0x10101010u));
    q[11] = ((w[7] >> 4 & 0x0f0f0f0fu) | (w[1] >> 1 & 0x10101010u));
    q[12] = ((w[8] & 0x0f0f0f0fu) | (w[0] >> 2 & 0x10101010u));
    q[14] = ((w[8] >> 4 & 0x0f0f0f0fu) | (w[0] >> 3 & 0x10101010u));
    q[13] = ((w[9] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x10101010u));
    q[15] = ((w[9] >> 4 & 0x0f0f0f0fu) | (w[1] >> 3 & 0x10101010u));
}

// Four integer scales sc of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_sc(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared + skip, from3 + 4 + half * 128) >> 0 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared + skip, from2 + 4 + half * 128) >> lane0 & 0x03030303u) << 4;
}

// Four integer scales mn of the row, as thread t of a quad holds them.
template <int half, int skip = 0>
__device__ __forceinline__ uint32_t scale_word_mn(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return (qgen_word4(qgen_shared + skip, from4 + 8 + half * 128) >> lane1 & 0x0f0f0f0fu) | (qgen_word4(qgen_shared + skip, from2 + 8 + half * 128) >> lane0 & 0x03030303u) << 4;
}

// The float factor of the row that f0_0 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_0(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from2 + 0 + half * 128));
}

// The float factor of the row that f0_1 holds.
template <int half, int skip = 0>
__device__ __forceinline__ float factor_0_1(int b, [[maybe_unused]] int row, [[maybe_unused]] int t) {
    [[maybe_unused]] const int lane0 = 4 + 2 * (t >> 0 & 1);
    [[maybe_unused]] const int lane1 = 0 + 4 * (t >> 0 & 1);
    [[maybe_unused]] const int from0 = qgen_keep(b + 64 * row + 16 * t);
    [[maybe_unused]] const int from1 = qgen_keep(b + 32 * row + 8 * t);
    [[maybe_unused]] const int from2 = qgen_keep(b + 16 * row);
    [[maybe_unused]] const int from3 = qgen_keep(b + 16 * row + 8 * (t >> 0 & 1));
    [[maybe_unused]] const int from4 = qgen_keep(b + 16 * row + 4 * (t >> 0 & 1));

    return qgen_f16_to_f32(*(const uint16_t*)(qgen_shared + skip + from2 + 2 + half * 128));
}

// Adds a bundle of sixteen rows times the tokens of `column_tiles` tiles to this thread's sums: rows g and g + 8, tokens 2t
// and 2t + 1 of every column tile. One set of sums is on its way at a time.
// place: where in shared memory the row tile's first block starts; record: where the first column tile's record does
template <int column_tiles>
__device__ __forceinline__ void add_bundle_1(int place, int row, int lane, int t, int record, float (&sum)[4 * column_tiles]) {
    uint32_t q[2][kBundle * kCodeWords];
    const uint32_t own_sc[2] = {scale_word_sc<0>(place, row, t), scale_word_sc<1>(place, row, t)};
    uint32_t sc[2][2];
#pragma unroll
    for (int i = 0; i < 2 * 2; ++i)
        sc[i / 2][i % 2] = __shfl_sync(0xffffffffu, own_sc[i / 2], (lane & 28) + i % 2);
    const uint32_t own_mn[2] = {scale_word_mn<0>(place, row, t), scale_word_mn<1>(place, row, t)};
    const qgen_matrices<kRecordBytes> matrices(record);
    int d[1][4 * column_tiles];
    int total[4 * column_tiles];
    int by_mn[4 * column_tiles];
    block_codes<0>(place, row, t, q[0]);
    block_codes<1>(place, row, t, q[1]);
    const float f0_0[2] = {factor_0_0<0>(place, row, t), factor_0_0<1>(place, row, t)};
    const float f0_1[2] = {factor_0_1<0>(place, row, t), factor_0_1<1>(place, row, t)};
    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][0], q[1][0], q[0][1], q[1][1], matrices, 0);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<0>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<0>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] = (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][2], q[1][2], q[0][3], q[1][3], matrices, 256);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<1>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<1>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][4], q[1][4], q[0][5], q[1][5], matrices, 512);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<2>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<2>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][6], q[1][6], q[0][7], q[1][7], matrices, 768);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<3>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<3>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][8], q[1][8], q[0][9], q[1][9], matrices, 1024);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<0>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<0>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][10], q[1][10], q[0][11], q[1][11], matrices, 1280);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<1>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<1>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][12], q[1][12], q[0][13], q[1][13], matrices, 1536);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<2>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<2>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][14], q[1][14], q[0][15], q[1][15], matrices, 1792);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<3>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<3>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        const uint2 x0 = qgen_load_u32x2(record + n * kRecordBytes + 2048 + t * (8 * kScales));
        const float dx0[2] = {__uint_as_float(x0.x), __uint_as_float(x0.y)};
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; ++i) {
            float v = sum[i];
            v = __fmaf_rn(__fmul_rn(f0_0[i % 4 / 2], dx0[i % 2]), __int2float_rn(total[i]), v);
            sum[i] = v;
        }
    }

    qgen_wgmma_begin();
    // The activation's sums are low + 128 * high.
    qgen_wgmma_k32<column_tiles, true, true>(d[0], own_mn[0], own_mn[1], 0u, 0u, matrices, 2080);
    qgen_wgmma_k32<column_tiles, true, true>(by_mn, own_mn[0], own_mn[1], 0u, 0u, matrices, 2208);
    qgen_wgmma_commit();

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    qgen_wgmma_keep(by_mn);
#pragma unroll
    for (int i = 0; i < 4 * column_tiles; ++i) {
        by_mn[i] = 128 * by_mn[i] + d[0][i];
    }
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        const uint2 x0 = qgen_load_u32x2(record + n * kRecordBytes + 2048 + t * (8 * kScales));
        const float dx0[2] = {__uint_as_float(x0.x), __uint_as_float(x0.y)};
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; ++i) {
            float v = sum[i];
            v = __fmaf_rn(-__fmul_rn(f0_1[i % 4 / 2], dx0[i % 2]), __int2float_rn(by_mn[i]), v);
            sum[i] = v;
        }
    }

}

// Adds a bundle of sixteen rows times the tokens of `column_tiles` tiles to this thread's sums: rows g and g + 8, tokens 2t
// and 2t + 1 of every column tile. Two sets of sums are on their way at once.
// place: where in shared memory the row tile's first block starts; record: where the first column tile's record does
template <int column_tiles>
__device__ __forceinline__ void add_bundle_2(int place, int row, int lane, int t, int record, float (&sum)[4 * column_tiles]) {
    uint32_t q[2][kBundle * kCodeWords];
    const uint32_t own_sc[2] = {scale_word_sc<0>(place, row, t), scale_word_sc<1>(place, row, t)};
    uint32_t sc[2][2];
#pragma unroll
    for (int i = 0; i < 2 * 2; ++i)
        sc[i / 2][i % 2] = __shfl_sync(0xffffffffu, own_sc[i / 2], (lane & 28) + i % 2);
    const uint32_t own_mn[2] = {scale_word_mn<0>(place, row, t), scale_word_mn<1>(place, row, t)};
    const qgen_matrices<kRecordBytes> matrices(record);
    int d[2][4 * column_tiles];
    int total[4 * column_tiles];
    int by_mn[4 * column_tiles];
    block_codes<0>(place, row, t, q[0]);
    block_codes<1>(place, row, t, q[1]);
    const float f0_0[2] = {factor_0_0<0>(place, row, t), factor_0_0<1>(place, row, t)};
    const float f0_1[2] = {factor_0_1<0>(place, row, t), factor_0_1<1>(place, row, t)};
    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][0], q[1][0], q[0][1], q[1][1], matrices, 0);
    qgen_wgmma_commit();

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[1], q[0][2], q[1][2], q[0][3], q[1][3], matrices, 256);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<0>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<0>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] = (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][4], q[1][4], q[0][5], q[1][5], matrices, 512);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[1]);
    {
        const int s0 = qgen_unsigned_byte<1>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<1>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[1][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[1], q[0][6], q[1][6], q[0][7], q[1][7], matrices, 768);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<2>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<2>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][8], q[1][8], q[0][9], q[1][9], matrices, 1024);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[1]);
    {
        const int s0 = qgen_unsigned_byte<3>(sc[0][0]);
        const int s1 = qgen_unsigned_byte<3>(sc[1][0]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[1][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[1], q[0][10], q[1][10], q[0][11], q[1][11], matrices, 1280);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<0>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<0>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[0], q[0][12], q[1][12], q[0][13], q[1][13], matrices, 1536);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[1]);
    {
        const int s0 = qgen_unsigned_byte<1>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<1>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[1][i];
    }

    qgen_wgmma_begin();
    qgen_wgmma_k32<column_tiles, true>(d[1], q[0][14], q[1][14], q[0][15], q[1][15], matrices, 1792);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[0]);
    {
        const int s0 = qgen_unsigned_byte<2>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<2>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[0][i];
    }

    qgen_wgmma_begin();
    // The activation's sums are low + 128 * high.
    qgen_wgmma_k32<column_tiles, true, true>(d[0], own_mn[0], own_mn[1], 0u, 0u, matrices, 2080);
    qgen_wgmma_k32<column_tiles, true, true>(by_mn, own_mn[0], own_mn[1], 0u, 0u, matrices, 2208);
    qgen_wgmma_commit();

    qgen_wgmma_wait<1>();
    qgen_wgmma_keep(d[1]);
    {
        const int s0 = qgen_unsigned_byte<3>(sc[0][1]);
        const int s1 = qgen_unsigned_byte<3>(sc[1][1]);
#pragma unroll
        for (int i = 0; i < 4 * column_tiles; ++i) total[i] += (i % 4 < 2 ? s0 : s1) * d[1][i];
    }
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        const uint2 x0 = qgen_load_u32x2(record + n * kRecordBytes + 2048 + t * (8 * kScales));
        const float dx0[2] = {__uint_as_float(x0.x), __uint_as_float(x0.y)};
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; ++i) {
            float v = sum[i];
            v = __fmaf_rn(__fmul_rn(f0_0[i % 4 / 2], dx0[i % 2]), __int2float_rn(total[i]), v);
            sum[i] = v;
        }
    }

    qgen_wgmma_wait<0>();
    qgen_wgmma_keep(d[0]);
    qgen_wgmma_keep(by_mn);
#pragma unroll
    for (int i = 0; i < 4 * column_tiles; ++i) {
        by_mn[i] = 128 * by_mn[i] + d[0][i];
    }
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
        const uint2 x0 = qgen_load_u32x2(record + n * kRecordBytes + 2048 + t * (8 * kScales));
        const float dx0[2] = {__uint_as_float(x0.x), __uint_as_float(x0.y)};
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; ++i) {
            float v = sum[i];
            v = __fmaf_rn(-__fmul_rn(f0_1[i % 4 / 2], dx0[i % 2]), __int2float_rn(by_mn[i]), v);
            sum[i] = v;
        }
    }

}

// How a CTA's work lies on its warps and in its shared memory. `split` warpgroups share rows, each with its part of the
// slices; behind them comes a warpgroup whose warps fetch, dealt to the parts. `kept` as in qgen_pending.
template <int column_tiles_, int row_groups, int split_, int stages_, bool kept>
struct Shape {
    static constexpr int column_tiles = column_tiles_, split = split_, stages = stages_;
    static constexpr int row_tiles = 4 * row_groups, warps = row_tiles * split;  // of a CTA
    static constexpr int fetchers = 4 / split;  // of a part
    static constexpr int registers = warps > 8 ? 104 : 232, few_registers = 40;  // of a thread that multiplies; that fetches
    // A stage has a bundle's activation records and then that bundle of every row tile.
    static constexpr int records_bytes = column_tiles * kRecordBytes, slot_bytes = kBundle * kTileBytes;
    static constexpr int stage_bytes = records_bytes + row_tiles * slot_bytes;
    using Pending = qgen_pending<column_tiles, warps, kSlices / split, split, kept>;
    static constexpr int pending_at = split * stages * stage_bytes, barriers_at = pending_at + Pending::bytes;
    using Walk = qgen_walk<split, kSlices>;
};

// What one of a part's fetching warps does: it has every S::fetchers-th row tile. Stages are filled in the order of their use.
// apart: bytes between the bundles' records; there: those of a bundle that are this CTA's
template <class S>
__device__ __forceinline__ void fetch(const uint8_t* weight, int rows, int blocks, int bundles, const uint8_t* records, int apart, int there,
                                      qgen_share share, int part, int fetcher, uint64_t* full, uint64_t* empty, int lane) {
    const int row_tiles = (rows + 15) / 16, at = part * S::stages * S::stage_bytes;
    const int64_t row_bytes = (int64_t)blocks * kTileBytes;  // of a row tile
    auto ask_weights = [&](const typename S::Walk& next, int stage) {
        const int first_tile = next.group * S::row_tiles, tiles = min(row_tiles - first_tile, S::row_tiles);
        if (lane == 0) {
            qgen_barrier_expect(full + stage, max(tiles - fetcher + S::fetchers - 1, 0) / S::fetchers * kTileBytes);
#pragma unroll 1
            for (int tile = fetcher; tile < tiles; tile += S::fetchers)
                qgen_copy_bulk(qgen_shared + at + stage * S::stage_bytes + S::records_bytes + tile * kTileBytes,
                               weight + (first_tile + tile) * row_bytes + (int64_t)next.bundle * kTileBytes, kTileBytes, full + stage);
        }
    };
    auto ask_records = [&](const typename S::Walk& next, int stage) {
        if (fetcher == 0 && lane == 0) {
            qgen_barrier_expect(full + stage, there);
            qgen_copy_bulk(qgen_shared + at + stage * S::stage_bytes, records + (int64_t)next.bundle * apart, there, full + stage);
        }
    };
    // The weights are there before the activation is.
    typename S::Walk early(part, share.begin, share.end, bundles);
    for (int stage = 0; stage < S::stages && early.group < share.end; ++stage, early.step(share.end, bundles)) ask_weights(early, stage);
    qgen_wait_for_inputs();
    int stage = 0;
    uint32_t round = 0;
#pragma unroll 1
    for (typename S::Walk next(part, share.begin, share.end, bundles); next.group < share.end; next.step(share.end, bundles)) {
        if (round > 0) {
            qgen_barrier_wait(empty + stage, (round + 1) & 1);
            // Lanes without a part in the phase to come would miss it, and the next one looks like the last one.
            __syncwarp();
            ask_weights(next, stage);
        }
        ask_records(next, stage);
        if (++stage == S::stages) stage = 0, ++round;
    }
}

// y[token][row] for this CTA's share of the rows, and of the tokens up to its columns.
template <class S, int depth>
__device__ __forceinline__ void multiply(const uint8_t* weight, int rows, int blocks, int tokens, const uint8_t* activation,
                                         float* y, int64_t y_stride) {
    const int lane = qgen_keep((int)threadIdx.x % 32), t = qgen_keep(lane % 4), row = qgen_keep(lane / 4);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // so that the compiler sees a branch on it as one
    const bool fetches = warp >= S::warps;
    const int part = fetches ? (warp - S::warps) / S::fetchers : warp / S::row_tiles, fetcher = (warp - S::warps) % S::fetchers;
    uint64_t *exchange = (uint64_t*)(qgen_shared + S::barriers_at), *full = exchange + 1 + part * (2 * S::stages), *empty = full + S::stages;
    if (fetches && fetcher == 0 && lane < S::stages) {
        qgen_barrier_init(full + lane, S::fetchers + 1);
        qgen_barrier_init(empty + lane, 32 * S::row_tiles);
        if (lane == 0 && part == 0) qgen_barrier_init(exchange, 32 * S::warps);
        qgen_barrier_publish();
    }
    __syncthreads();
    qgen_let_next_begin();

    const int bundles = blocks;
    const qgen_share share(((rows + 15) / 16 + S::row_tiles - 1) / S::row_tiles);
    // The CTAs' column tiles, as equal as eight tokens allow.
    const int all_tiles = (tokens + 7) / 8, column_share = (all_tiles + (int)gridDim.y - 1) / (int)gridDim.y;
    const int column = blockIdx.y * (8 * column_share), left = min(tokens - column, 8 * column_share);
    if (fetches) {
        qgen_fewer_registers<S::few_registers>();
        fetch<S>(weight, rows, blocks, bundles, activation + blockIdx.y * column_share * kRecordBytes, all_tiles * kRecordBytes, (left + 7) / 8 * kRecordBytes, share, part, fetcher, full, empty, lane);
        return;
    }
    qgen_more_registers<S::registers>();
    const int own_tile = warp % S::row_tiles;
    const int first_stage = part * S::stages * S::stage_bytes, place_at = S::records_bytes + own_tile * S::slot_bytes;
    typename S::Pending pending(S::pending_at, exchange);
    qgen_wait_for_inputs();
    int stage = 0;
    uint32_t round = 0;
    for (int group = share.begin; group < share.end; ++group) {
        float sum[4 * S::column_tiles];
#pragma unroll 1
        for (int i = 0; i < kSlices / S::split; ++i) {
#pragma unroll
            for (int j = 0; j < 4 * S::column_tiles; ++j) sum[j] = 0.0f;
#pragma unroll 1
            for (int bundle = S::Walk::slice_of(i) + part; bundle < bundles; bundle += kSlices) {
                qgen_barrier_wait(full + stage, round & 1);
                const int from = first_stage + stage * S::stage_bytes;
                if constexpr (depth == 1) add_bundle_1<S::column_tiles>(from + place_at, row, lane, t, from, sum);
                else add_bundle_2<S::column_tiles>(from + place_at, row, lane, t, from, sum);
                qgen_barrier_arrive(empty + stage);
                if (++stage == S::stages) stage = 0, ++round;
            }
            pending.add(sum, i);
        }
        pending.add_parts(sum, part);
        if (S::split == 1 || part == 0) {
            const int first = 16 * (group * S::row_tiles + own_tile) + row;
            // From column to column: addresses made of each one's number would hold registers through all of K.
            float* to = y + (column + 2 * t) * y_stride + first;
#pragma unroll
            for (int n = 0; n < S::column_tiles; ++n, to += 8 * y_stride)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int token = 8 * n + 2 * t + j % 2, down = j / 2 * 8;
                    if (token < left && first + down < rows) qgen_store_f32(to + j % 2 * y_stride + down, sum[4 * n + j]);
                }
        }
    }
}

}  // namespace

// capacity 16 tokens, 128 rows a CTA; 640 threads: 16 warps and four that fetch; 3 stages; 213608 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q5_k_q8_g256_t16__wgmma_tiled_g2s2(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<2, 2, 2, 3, false>, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 16 tokens, 64 rows a CTA; 640 threads: 16 warps and four that fetch; 3 stages; 226504 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q5_k_q8_g256_t16__wgmma_tiled_g1s4(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<2, 1, 4, 3, false>, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 32 tokens, 128 rows a CTA; 640 threads: 16 warps and four that fetch; 2 stages; 227400 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(640, 1)
mul_mat_q5_k_q8_g256_t32__wgmma_tiled_g2s2(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<4, 2, 2, 2, false>, 1>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 32 tokens, 64 rows a CTA; 384 threads: 8 warps and four that fetch; 4 stages; 200840 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(384, 1)
mul_mat_q5_k_q8_g256_t32__wgmma_tiled_g1s2(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<4, 1, 2, 4, true>, 2>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 48 tokens, 128 rows a CTA; 384 threads: 8 warps and four that fetch; 4 stages; 222280 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(384, 1)
mul_mat_q5_k_q8_g256_t48__wgmma_tiled_g2s1(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<6, 2, 1, 4, true>, 2>(weight, rows, blocks, tokens, activation, y, y_stride);
}
// capacity 64 tokens, 128 rows a CTA; 384 threads: 8 warps and four that fetch; 3 stages; 224312 bytes of dynamic shared memory
extern "C" __global__ void __launch_bounds__(384, 1)
mul_mat_q5_k_q8_g256_t64__wgmma_tiled_g2s1(const uint8_t* __restrict__ weight, int rows, int blocks, int tokens,
    const uint8_t* __restrict__ activation, float* __restrict__ y, int64_t y_stride) {
    multiply<Shape<8, 2, 1, 3, true>, 2>(weight, rows, blocks, tokens, activation, y, y_stride);
}
