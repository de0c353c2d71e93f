// Kernels of one token over tiles: a CTA takes row tiles one after the other and its warps share the blocks of K. What a
// warp makes of a stage is the business of a class Work with
//   stage_blocks                  blocks of a stage, all warps
//   Work(activation, blocks, token, warp, t, row)   t, row: lane % 4 and lane / 4
//   begin()                       a row tile begins: its sums are zero
//   load(stage, left)             asks for the activation of a stage, of which `left` blocks or more are there
//   add(slot, left)               adds the stage, whose tiles start at byte `slot` of shared memory
//   store(terms)                  writes the warp's sums of the sixteen rows
#pragma once

#include "qgen_split.cuh"
#include "qgen_tiles.cuh"

// y[token][row] of one token for this CTA's share of the row tiles.
template <class Work, int warps, int stages, int tile_bytes>
__device__ __forceinline__ void qgen_single(const uint8_t* weight, int rows, int blocks, const uint8_t* activation, float* y,
                                            int64_t y_stride) {
    constexpr int stage_blocks = Work::stage_blocks, slot_bytes = stage_blocks * tile_bytes;
    using Ring = qgen_tile_ring<warps, stages, slot_bytes>;

    const int lane = qgen_keep((int)threadIdx.x % 32), t = qgen_keep(lane % 4), row = qgen_keep(lane / 4);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // so that the compiler sees a branch on it as one
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    float* partial = (float*)(qgen_shared + Ring::bytes);
    uint64_t* barriers = (uint64_t*)(partial + warps * 16);
    Ring ring(barriers);
    const qgen_handover<warps, 1> handover(barriers + 2 * stages, true, warp, lane);
    __syncthreads();

    const qgen_share share((rows + 15) / 16);
    // Where CTAs take one row tile each, and longer than for what they asked ahead, the next kernel's CTAs would pile up on
    // the multiprocessors that are left first: they come later then.
    const bool late = share.end - share.begin <= 1 && stage_count > stages;
    if (!late) qgen_let_next_begin();
    const int64_t row_bytes = (int64_t)blocks * tile_bytes;  // of a row tile
    int ahead_tile = share.begin, ahead_stage = 0, turn = 0;  // turn: of the warp that makes the next request
    auto request = [&]() {
        if (turn == warp && ahead_tile < share.end)
            ring.template fill<1>(weight + ahead_tile * row_bytes + (int64_t)ahead_stage * slot_bytes, row_bytes, 1,
                                  min(blocks - ahead_stage * stage_blocks, stage_blocks) * tile_bytes, lane);
        ring.ask();
        if (++turn == warps) turn = 0;
        if (++ahead_stage == stage_count) ahead_stage = 0, ++ahead_tile;
    };
#pragma unroll 1
    for (int i = 0; i < Ring::ahead; ++i) request();

    const int token = blockIdx.y;
    Work work(activation, blocks, token, warp, t, row);
    const int row_end = min(rows, share.end * 16);
    // Adds up the warps of result `number`, rows from `tile` on, a row a thread.
    auto finish = [&](int number, int tile) {
        if (warp != number % warps) return;
        handover.before_add(number);
        float v[warps];
#pragma unroll
        for (int w = 0; w < warps; ++w) v[w] = partial[w * 16 + lane % 16];
        const float total = qgen_halving_sum<warps>(v);
        if (lane < 16 && tile + lane < row_end) qgen_store_f32(y + token * y_stride + tile + lane, total);
        handover.after_add();
    };
    qgen_wait_for_inputs();
    int number = 0;
    for (int tile = share.begin * 16; tile < row_end; tile += 16) {
        work.begin();
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            const int left = blocks - stage * stage_blocks;
            work.load(stage, left);
            const int slot = ring.wait();
            request();
            work.add(slot, left);
            ring.release(lane);
            if (stage == 0 && number > 0) finish(number - 1, tile - 16);
        }
        if (late) qgen_let_next_begin();
        handover.before_write(number);
        work.store(partial + warp * 16);
        handover.after_write();
        ++number;
    }
    if (number > 0) finish(number - 1, share.begin * 16 + (number - 1) * 16);
}
