// Kernels of one token over tiles: teams of `warps` take row tiles one after the other, and the warps of a team share the
// blocks of K. What a warp makes of a stage is the business of a class Work with
//   Activation                    what finds the quantised activation: a pointer, or bytes from the start of shared memory
//   stage_blocks                  blocks of a stage, all warps of a team
//   Work(activation, blocks, token, warp, t, row)   t, row: lane % 4 and lane / 4
//   begin()                       a row tile begins: its sums are zero
//   load(stage, left)             asks for the activation of a stage, of which `left` blocks or more are there
//   add(slot, left)               adds the stage, whose tiles start at byte `slot` of shared memory
//   store(terms)                  writes the warp's sums of the sixteen rows
// and how the activation comes that of a class Inputs with
//   held                          whether the CTA quantises it by itself
//   get(more)                     all threads: waits for what kernels in front write, and makes the activation ready;
//                                 calls more(), which asks for the rest of the first weights
#pragma once

#include "qgen_split.cuh"
#include "qgen_tiles.cuh"

// The activation is in global memory, quantised by the kernel in front: every CTA waits for it, with all requests made.
struct qgen_quantised {
    static constexpr bool held = false;

    template <class More>
    __device__ __forceinline__ void get(More more) const {
        more();
        qgen_wait_for_inputs();
    }
};

// y[token][row] of one token for this CTA's share of the row tiles.
template <class Work, int warps, int teams, int stages, int tile_bytes, class Inputs>
__device__ __forceinline__ void qgen_single(const uint8_t* weight, int rows, int blocks, typename Work::Activation activation,
                                            float* y, int64_t y_stride, const Inputs& inputs) {
    constexpr int stage_blocks = Work::stage_blocks, slot_bytes = stage_blocks * tile_bytes;
    using Ring = qgen_tile_ring<warps, stages, slot_bytes, Inputs::held ? 0 : 1>;

    const int lane = qgen_keep((int)threadIdx.x % 32), t = qgen_keep(lane % 4), row = qgen_keep(lane / 4);
    const int cta_warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // so that the compiler sees a branch on it as one
    const int team = teams > 1 ? cta_warp / warps : 0, warp = teams > 1 ? cta_warp % warps : cta_warp;
    const int stage_count = (blocks + stage_blocks - 1) / stage_blocks;
    float* partials = (float*)(qgen_shared + teams * Ring::bytes);
    float* partial = partials + team * (warps * 16);
    uint64_t* barriers = (uint64_t*)(partials + teams * (warps * 16)) + team * (2 * stages + 2);
    Ring ring(barriers, team * Ring::bytes, (int)threadIdx.x - team * (32 * warps));
    const qgen_handover<warps, 1> handover(barriers + 2 * stages, true, warp, lane);
    __syncthreads();

    const qgen_share share((rows + 15) / 16);
    // Where CTAs take one row tile each, and longer than for what they asked ahead, the next kernel's CTAs would pile up on
    // the multiprocessors that are left first: they come later then. CTAs that quantise have a multiprocessor each.
    const bool late = !Inputs::held && share.end - share.begin <= 1 && stage_count > stages;
    if (!late) qgen_let_next_begin();
    const int64_t row_bytes = (int64_t)blocks * tile_bytes;  // of a row tile
    int ahead_tile = share.begin + team, ahead_stage = 0, turn = 0;  // turn: of the warp that makes the next request
    auto request = [&]() {
        if (turn == warp && ahead_tile < share.end)
            ring.template fill<1>(weight + ahead_tile * row_bytes + (int64_t)ahead_stage * slot_bytes, row_bytes, 1,
                                  min(blocks - ahead_stage * stage_blocks, stage_blocks) * tile_bytes, lane);
        ring.ask();
        if (++turn == warps) turn = 0;
        if (++ahead_stage == stage_count) ahead_stage = 0, ahead_tile += teams;
    };
    // Where x is quantised here, one stage is on its way before x is asked for, and the others come behind x.
    constexpr int first = Inputs::held ? 1 : 0;
    if (first) request();

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
    inputs.get([&]() {
#pragma unroll 1
        for (int i = first; i < Ring::ahead; ++i) request();
    });
    const int begin = (share.begin + team) * 16;
    int number = 0;
    for (int tile = begin; tile < row_end; tile += 16 * teams) {
        work.begin();
#pragma unroll 1
        for (int stage = 0; stage < stage_count; ++stage) {
            const int left = blocks - stage * stage_blocks;
            work.load(stage, left);
            const int slot = ring.wait();
            request();
            work.add(slot, left);
            ring.release();
            if (stage == 0 && number > 0) finish(number - 1, tile - 16 * teams);
        }
        if (late) qgen_let_next_begin();
        handover.before_write(number);
        work.store(partial + warp * 16);
        handover.after_write();
        ++number;
    }
    if (number > 0) finish(number - 1, begin + (number - 1) * (16 * teams));
}
