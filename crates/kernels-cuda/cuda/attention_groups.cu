// The numbers of attention_tiles.cu on cards of compute capability 9.0, after FlashAttention-3 (arxiv.org/abs/2407.08608): the same chains of
// products, asked for by groups of four warps. Two groups have 64 queries each and read the same keys, which a third one brings, so that one
// group's weights are computed while the cores have the other's products. Scores are products of queries' pieces and keys in shared memory; where a
// lane has scores is where it brings weights, so these stay in registers. A cache's numbers are one half each (KV_F16).
//
// (tiles of rows, kv_heads * tiles of heads), as in attention_tiles.cu. Shared: keys and values of a span by turns, in a ring of stages; of each group
// the queries' pieces; what undoes their powers of two; barriers. All that products read lies in mixed rows of 64 columns.
#include "queries.cuh"
#include "hopper.cuh"

#define GROUPS 2
#define GROUP_QUERIES 64
#define GROUPS_THREADS (128 * (GROUPS + 1))
#define KV_STAGES 4
// Of a thread of those who multiply, and of those who bring: together what a multiprocessor has, for a thread of each.
#define GROUPS_REGISTERS 224
#define BRINGERS_REGISTERS 56
static_assert(GROUPS * GROUPS_REGISTERS + BRINGERS_REGISTERS <= 65536 / 128, "more registers than there are");
// Keys of a step of products, and of a span.
#define STEP_KEYS 16
#define SPAN_STEPS (SPAN / STEP_KEYS)
// Columns of a row, and bytes of a span's rows and of a group's.
#define PART_COLS (MIXED_ROW_BYTES / 2)
#define PART_BYTES (SPAN * MIXED_ROW_BYTES)
#define GROUP_PART_BYTES (GROUP_QUERIES * MIXED_ROW_BYTES)

__device__ __forceinline__ uint32_t mixed_part(uint32_t row, uint32_t eight) { return MIXED_ROW_BYTES * row + 16 * (eight ^ row % 8); }

// What a block's groups share, of heads PARTS times 64 columns wide.
template <uint32_t PARTS>
struct Shared {
  unsigned char *stages, *queries;
  float* inverses;
  uint64_t *there, *read;  // of each stage
  uint64_t *cut, *turns;   // of each group's queries, and when it may have the cores

  __device__ __forceinline__ explicit Shared(unsigned char* room)
      : stages(room),
        queries(stages + KV_STAGES * PARTS * PART_BYTES),
        inverses(reinterpret_cast<float*>(queries + GROUPS * 2 * PARTS * GROUP_PART_BYTES)),
        there(reinterpret_cast<uint64_t*>(inverses + GROUPS * GROUP_QUERIES)),
        read(there + KV_STAGES),
        cut(read + KV_STAGES),
        turns(cut + GROUPS) {}

  // By one thread.
  __device__ __forceinline__ void begin() const {
#pragma unroll 1
    for (uint32_t stage = 0; stage < KV_STAGES; stage++) {
      dev::begin_barrier(there + stage, 128);
      dev::begin_barrier(read + stage, 4 * GROUPS);
    }
#pragma unroll 1
    for (uint32_t group = 0; group < GROUPS; group++) {
      dev::begin_barrier(cut + group, 128);
      dev::begin_barrier(turns + group, 4);
    }
  }
  __device__ __forceinline__ unsigned char* stage(uint32_t turn) const { return stages + turn % KV_STAGES * (PARTS * PART_BYTES); }
  __device__ __forceinline__ unsigned char* piece(uint32_t group, uint32_t piece) const { return queries + (2 * group + piece) * (PARTS * GROUP_PART_BYTES); }
};

// Four warps bring keys and values, 16 bytes of a key to a thread: eight threads have one row.
template <uint32_t PARTS>
__device__ __forceinline__ void bring_spans(const AttentionParams& p, uint32_t sequence, uint32_t kv_head, uint32_t first, uint32_t end, const Shared<PARTS>& shared) {
  const uint32_t eight = threadIdx.x % 8, own = threadIdx.x % 128 / 8;  // and each 16th key from there on
  const uint32_t* table = p.batch.tables + 2 * (sequence * p.batch.groups + p.group);
  const uint32_t head = kv_head * kv_bytes(KV_F16, p.head_dim) + 16 * eight;
  uint32_t turn = 0;
  // A turn's copies have come, and are told to those who wait.
  const auto came = [&](uint32_t turn) {
    dev::seen_by_products();
    dev::arrive(shared.there + turn % KV_STAGES);
  };
#pragma unroll 1
  for (uint32_t span = first / SPAN; SPAN * span < end; span++) {
    uint32_t slots[SPAN_STEPS];
#pragma unroll
    for (uint32_t step = 0; step < SPAN_STEPS; step++) {
      const uint32_t key = SPAN * span + STEP_KEYS * step + own;
      slots[step] = key >= first && key < end ? slot_of(p.batch, table, key) : NONE;
    }
#pragma unroll 1
    for (uint32_t values = 0; values < 2; values++) {
      if (turn >= KV_STAGES) dev::wait_for_phase(shared.read + turn % KV_STAGES, (turn / KV_STAGES - 1) % 2);
      unsigned char* stage = shared.stage(turn) + mixed_part(own, eight);
      const uint8_t* plane = (values ? p.value_plane : p.key_plane) + head;
#pragma unroll
      for (uint32_t part = 0; part < PARTS; part++) {
#pragma unroll
        for (uint32_t step = 0; step < SPAN_STEPS; step++) {
          const bool there = slots[step] != NONE && PART_COLS * part + 8 * eight < p.head_dim;
          dev::bring_for_products(stage + part * PART_BYTES + step * (STEP_KEYS * MIXED_ROW_BYTES), there ? plane + (size_t)slots[step] * p.slot_bytes + part * MIXED_ROW_BYTES : plane, there);
        }
      }
      dev::brought();
      // The turn before this one is on its way for as long as this one took to be asked for.
      if (turn > 0) {
        dev::wait_for_all_but<1>();
        came(turn - 1);
      }
      turn++;
    }
  }
  dev::wait_for_all_but<0>();
  came(turn - 1);
}

// Weights, as two halves each: numbers up to 2^14.
__device__ __forceinline__ void cut_weights(float a, float b, uint32_t& upper, uint32_t& lower) {
  upper = dev::to_halves(a, b);
  lower = dev::to_halves(a - dev::from_half((uint16_t)upper), b - dev::from_half((uint16_t)(upper >> 16)));
}

// Four warps have 64 queries.
template <uint32_t PARTS>
__device__ __forceinline__ void attend_group(const AttentionParams& p, const Rows& rows, uint32_t head_first, uint32_t heads, uint32_t heads_left, uint32_t first, uint32_t end, const Shared<PARTS>& shared) {
  const uint32_t group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t query = warp; query < GROUP_QUERIES; query += 4) {
    const uint32_t row = (GROUP_QUERIES * group + query) / heads, head = (GROUP_QUERIES * group + query) % heads;
    uint32_t upper[4], lower[4];
    const float inverse = cut_query(p, row < rows.count && head < heads_left, rows.first + row, head_first + head, upper, lower);
    if (lane < 8 * PARTS) {
      const uint32_t place = lane / 8 * GROUP_PART_BYTES + mixed_part(query, lane % 8);
      dev::store_for_products(shared.piece(group, 0) + place, upper);
      dev::store_for_products(shared.piece(group, 1) + place, lower);
    }
    if (lane == 0) shared.inverses[GROUP_QUERIES * group + query] = inverse;
  }
  dev::seen_by_products();
  dev::arrive(shared.cut + group);
  dev::wait_for_phase(shared.cut + group, 0);

  // A lane's two queries, eight apart: each head of a row has a number, from the step's first row on.
  const uint32_t* of_sequence = p.batch.spans + 4 * rows.sequence;
  uint32_t number[2], sees_first[2], sees_end[2];
  float inverse[2];
  Folded folded[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    const uint32_t query = GROUP_QUERIES * group + 16 * warp + 8 * h + lane / 4;
    const bool there = query / heads < rows.count && query % heads < heads_left;
    const uint32_t row = rows.first + (there ? query / heads : 0), head = head_first + (there ? query % heads : 0);
    number[h] = row * p.heads + head;
    const Seen seen = seen_by(p, row, of_sequence);
    sees_first[h] = there ? seen.first : NONE;  // of which no key is
    sees_end[h] = seen.end;
    inverse[h] = shared.inverses[query];
    folded[h] = nothing_folded(p.sinks, head);
  }
  float sums[PARTS][PART_COLS / 2] = {};
  uint32_t turn = 0;
  const auto wait = [&] {
    dev::wait_for_phase(shared.there + turn % KV_STAGES, turn / KV_STAGES % 2);
    return shared.stage(turn);
  };
  // Nothing of the turn is read any more.
  const auto done = [&] {
    if (lane == 0) dev::arrive(shared.read + turn % KV_STAGES);
    turn++;
  };

  // The groups have the cores by turns: a span's values and the next one's keys, so that one has products while the other makes weights.
  static_assert(GROUPS == 2, "turns are of two");
  uint32_t turns = 0;
  const auto take_turn = [&] {
    if (group > 0 || turns > 0) dev::wait_for_phase(shared.turns + group, (turns + group + 1) % 2);
    turns++;
  };
  const auto give_turn = [&] {
    if (lane == 0) dev::arrive(shared.turns + 1 - group);
  };
  const auto ask_scores = [&](float (&scores)[SPAN / 2]) {
    const unsigned char* keys = wait();
    dev::products_begin();
#pragma unroll
    for (uint32_t step = 0; step < 4 * PARTS; step++) {
      const uint64_t key = dev::mixed_rows(keys + step / 4 * PART_BYTES + step % 4 * 32);
      const uint32_t place = step / 4 * GROUP_PART_BYTES + step % 4 * 32;
      const uint64_t upper = dev::mixed_rows(shared.piece(group, 0) + place), lower = dev::mixed_rows(shared.piece(group, 1) + place);
      if (step == 0) {
        dev::ask_products_of<false>(scores, lower, key);
      } else {
        dev::ask_products_of<true>(scores, lower, key);
      }
      dev::ask_products_of<true>(scores, upper, key);
    }
    dev::products_asked();
  };
  const auto wait_for_scores = [&](float (&scores)[SPAN / 2]) {
    dev::wait_for_products_but<0>(scores);
    done();
    give_turn();
  };
  float scores[SPAN / 2];
  take_turn();
  ask_scores(scores);
  wait_for_scores(scores);

#pragma unroll 1
  for (uint32_t span = first / SPAN;; span++) {
    // Of a lane's scores the h-th two of each four are a query's, and stand for keys side by side.
    const auto key_of = [&](uint32_t i) { return SPAN * span + i / 4 * 8 + 2 * (lane % 4) + i % 2; };
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (uint32_t i = 0; i < SPAN / 2; i++) scores[i] = dev::times(scores[i], inverse[i % 4 / 2]);
    if (p.softcap != 0.0f) {
#pragma unroll
      for (uint32_t i = 0; i < SPAN / 2; i++) scores[i] = capped(p, scores[i]);
    }
    if (p.slopes) {
#pragma unroll
      for (uint32_t i = 0; i < SPAN / 2; i++) scores[i] = sloped(p, number[i % 4 / 2] % p.heads, sees_end[i % 4 / 2] - 1 - key_of(i), scores[i]);
    }
    bool sees_all = true;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) sees_all = sees_all && SPAN * span >= sees_first[h] && SPAN * span + SPAN <= sees_end[h];
    if (!sees_all) {
#pragma unroll
      for (uint32_t i = 0; i < SPAN / 2; i++) {
        const uint32_t h = i % 4 / 2, key = key_of(i);
        scores[i] = key >= sees_first[h] && key < sees_end[h] ? scores[i] : -INFINITY;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < SPAN / 2; i++) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], scores[i]);
    float base[2];  // nothing is less than nothing
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      largest[h] = dev::quad_max(largest[h]);
      base[h] = largest[h] == -INFINITY ? 0.0f : largest[h];
    }
    uint32_t upper[SPAN_STEPS][4], lower[SPAN_STEPS][4];
    float totals[BLOCKS_OF_KEYS][2];
#pragma unroll
    for (uint32_t block = 0; block < BLOCKS_OF_KEYS; block++) {
      totals[block][0] = totals[block][1] = 0.0f;
#pragma unroll
      for (uint32_t step = 2 * block; step < 2 * block + 2; step++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
          float weight[2];
#pragma unroll
          for (uint32_t n = 0; n < 2; n++) {
            weight[n] = WEIGHT_FACTOR * expf(dev::plus(scores[8 * step + 4 * (i / 2) + 2 * (i % 2) + n], -base[i % 2]));
            totals[block][i % 2] += weight[n];
          }
          cut_weights(weight[0], weight[1], upper[step][i], lower[step][i]);
        }
      }
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
      for (uint32_t block = 0; block < BLOCKS_OF_KEYS; block++) totals[block][h] = dev::quad_sum(totals[block][h]);
      fold(folded[h], largest[h], ((totals[0][h] + totals[1][h]) + (totals[2][h] + totals[3][h])) * (1.0f / WEIGHT_FACTOR));
    }

    take_turn();
    const unsigned char* values = wait();
    float c[PART_COLS / 2], rest[PART_COLS / 2];  // of the first halves of weights, and of the others
    const auto fold_part = [&](float (&sums)[PART_COLS / 2]) {
#pragma unroll
      for (uint32_t i = 0; i < PART_COLS / 2; i++) sums[i] = fold_sum(folded[i % 4 / 2], sums[i], (c[i] + rest[i]) * (1.0f / WEIGHT_FACTOR));
    };
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++) {
      dev::products_begin();
#pragma unroll
      for (uint32_t step = 0; step < SPAN_STEPS; step++) {
        const uint64_t value = dev::mixed_rows(values + part * PART_BYTES + step * (STEP_KEYS * MIXED_ROW_BYTES));
        if (step == 0) {
          dev::ask_products_across<false>(rest, lower[step], value);
          dev::ask_products_across<false>(c, upper[step], value);
        } else {
          dev::ask_products_across<true>(rest, lower[step], value);
          dev::ask_products_across<true>(c, upper[step], value);
        }
      }
      dev::products_asked();
      dev::wait_for_products_but<0>(c, rest);
      if (part + 1 < PARTS) fold_part(sums[part]);
    }
    done();
    if (SPAN * (span + 1) >= end) {
      give_turn();
      fold_part(sums[PARTS - 1]);
      break;
    }
    float next[SPAN / 2];
    ask_scores(next);
    fold_part(sums[PARTS - 1]);
    wait_for_scores(next);
#pragma unroll
    for (uint32_t i = 0; i < SPAN / 2; i++) scores[i] = next[i];
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (sees_first[h] == NONE) continue;
    float* out = p.out + (size_t)(number[h] / p.heads) * p.out_stride + number[h] % p.heads * p.head_dim;
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++) {
#pragma unroll
      for (uint32_t i = 0; i < PART_COLS / 4; i++) {
        const uint32_t column = PART_COLS * part + i / 2 * 8 + 2 * (lane % 4) + i % 2;
        if (column < p.head_dim) out[column] = sums[part][i / 2 * 4 + 2 * h + i % 2] / folded[h].total;
      }
    }
  }
}

template <uint32_t PARTS>
__device__ __forceinline__ void attend_by_groups(const AttentionParams& p, unsigned char* room) {
  constexpr uint32_t QUERIES = GROUPS * GROUP_QUERIES;
  const Shared<PARTS> shared(room);
  const uint32_t of_each = p.heads / p.kv_heads, heads = of_each < QUERIES ? of_each : QUERIES;
  const uint32_t head_tiles = (of_each + heads - 1) / heads, kv_head = blockIdx.y / head_tiles;
  const uint32_t head_first = kv_head * of_each + blockIdx.y % head_tiles * heads, heads_left = (kv_head + 1) * of_each - head_first;
  // The last rows come first: they see the most keys.
  const Rows rows = find_rows(p, gridDim.x - 1 - blockIdx.x, QUERIES / heads, false);
  if (rows.count == 0) return;
  const uint32_t* of_sequence = p.batch.spans + 4 * rows.sequence;
  const uint32_t first = seen_by(p, rows.first, of_sequence).first, end = seen_by(p, rows.first + rows.count - 1, of_sequence).end;
  if (threadIdx.x == 0) shared.begin();
  __syncthreads();
  if (threadIdx.x / 128 == GROUPS) {
    dev::leave_registers_but<BRINGERS_REGISTERS>();
    bring_spans(p, rows.sequence, kv_head, first, end, shared);
  } else {
    dev::take_registers<GROUPS_REGISTERS>();
    attend_group(p, rows, head_first, heads, heads_left, first, end, shared);
  }
}

// Of heads up to 64 and up to 128 wide.
WIDE_KERNEL(attention_groups_narrow, AttentionParams, GROUPS_THREADS, 1) {
  SHARED_ROWS(room);
  attend_by_groups<1>(p, room);
}

WIDE_KERNEL(attention_groups, AttentionParams, GROUPS_THREADS, 1) {
  SHARED_ROWS(room);
  attend_by_groups<2>(p, room);
}
