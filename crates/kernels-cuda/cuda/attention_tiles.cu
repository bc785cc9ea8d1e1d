// The formula of attention.cu on the tensor cores, of heads whose keys and values are as wide, by tiles of 16 queries that read the same
// keys: heads of some neighbouring rows of a sequence. A query is two halves under a power of two for all of it, which have 22 bits of
// its largest number and more of small ones. Weights, 2^14 times as large, are two as well: so numbers are within 8e-7 of the formula's
// where values are up to 1, and with one half they would be within 1.3e-4. What the cache has is one half in F16, and two in Q8_0, which
// hold a code's product with its scale.
//
// A score is one chain of products over a head's columns; a sum of values is one over the keys of a span for the first halves of weights
// and one for the others; a span's total is that of four blocks of 32 keys. None of them sees the tile's other queries, whose keys have
// no weight for it. So a row's numbers are the same to the bit in any tile, and whichever of the kernels computes it: they differ in how
// many warps share a tile's keys and columns.
//
// A block of threads has the tiles of one head of keys: (tiles of rows, kv_heads * tiles of heads), and as in attention.cu each span on
// its own where there are parts. Shared: chunks of 32 columns of a span's keys or values, some of which are on their way; the queries'
// pieces; the weights'; maxima, totals, and what undoes the powers of two.
#include "queries.cuh"

// Columns of a chunk, queries of a tile, and bytes: of a chunk in halves, and of 16 queries or weights by 32 columns or 16 keys.
#define CHUNK_COLS 32
#define TILE 16
#define CHUNK_BYTES (2 * CHUNK_COLS * SPAN)
#define QUERY_BYTES (2 * CHUNK_COLS * TILE)
#define WEIGHT_BYTES (2 * 16 * TILE)

// Where eight columns of a key are in a chunk: eight keys' that are read at once are in banks of their own.
__device__ __forceinline__ uint32_t place_of(uint32_t key, uint32_t eight) { return 2 * CHUNK_COLS * key + 16 * (eight ^ key / 2 % 4); }

// A thread brings of a chunk the same eight columns of four keys, 32 apart.
template <int PIECES>
struct Bringer {
  uint32_t head;  // where its bytes are in a slot
  uint32_t slots[4], after[4], span, chunk;
  uint32_t codes[PIECES == 1 ? 1 : 4][2], scales[PIECES == 1 ? 1 : 4];

  __device__ __forceinline__ void find(const AttentionParams& p, uint32_t sequence, uint32_t of, uint32_t first, uint32_t end) {
    const uint32_t* table = p.batch.tables + 2 * (sequence * p.batch.groups + p.group);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t key = SPAN * of + 32 * i + threadIdx.x / 4;
      after[i] = key >= first && key < end ? slot_of(p.batch, table, key) : NONE;
    }
  }
  __device__ __forceinline__ void turn() {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) slots[i] = after[i];
  }
  // Begins; codes are on their way until `finish`.
  __device__ __forceinline__ void begin(const AttentionParams& p, uint32_t chunks, unsigned char* stage) {
    const uint32_t column = CHUNK_COLS * (chunk % chunks) + 8 * (threadIdx.x % 4);
    const uint8_t* plane = (chunk < chunks ? p.key_plane : p.value_plane) + head;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const bool there = slots[i] != NONE && column < p.head_dim;
      if constexpr (PIECES == 1) {
        unsigned char* to = stage + place_of(32 * i + threadIdx.x / 4, threadIdx.x % 4);
        const uint32_t zeros[4] = {};
        if (there) {
          dev::bring16(to, plane + (size_t)slots[i] * p.slot_bytes + 2 * column);
        } else {
          dev::store16(to, zeros);
        }
      } else {
        codes[i][0] = codes[i][1] = scales[i] = 0;
        if (there && p.kv_type == KV_FP8) {
          dev::load8(plane + (size_t)slots[i] * p.slot_bytes + column, codes[i]);
        } else if (there) {
          const uint8_t* block = plane + (size_t)slots[i] * p.slot_bytes + column / 32 * 34;
          scales[i] = dev::load2(block);
#pragma unroll
          for (uint32_t j = 0; j < 2; j++) codes[i][j] = dev::load2(block + 2 + column % 32 + 4 * j) | dev::load2(block + 4 + column % 32 + 4 * j) << 16;
        }
      }
    }
  }
  __device__ __forceinline__ void finish(const AttentionParams& p, unsigned char* stage) {
    if constexpr (PIECES == 2) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        uint32_t upper[4], lower[4];
        const float scale = dev::from_half((uint16_t)scales[i]);
        const auto number = [&](uint32_t n) { return scale * (float)(int8_t)(codes[i][n / 4] >> (8 * (n % 4))); };
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
          if (p.kv_type == KV_FP8) {
            // A half holds it.
            upper[j] = fp8_pair(dev::pick_bytes(codes[i][j / 2], 0, j % 2 == 0 ? 0x1404 : 0x3424));
            lower[j] = 0;
          } else {
            cut_in_two(number(2 * j), number(2 * j + 1), upper[j], lower[j]);
          }
        }
        unsigned char* to = stage + place_of(32 * i + threadIdx.x / 4, threadIdx.x % 4);
        dev::store16(to, upper);
        dev::store16(to + CHUNK_BYTES, lower);
      }
    }
  }
};

// What the blocks of a tile have left of its rows' spans, brought together by the last of them to come: as attention_join does it, to the bit. A
// warp has a head of a row, of which a lane has four numbers of each 128. Shared: what is cut, the heads side by side.
// It is called, and whose tile it is is found again: nothing is kept for it while keys are multiplied, which would take registers that there
// are not.
CALLED void join_tile(const AttentionParams& p, unsigned char* room) {
  const uint32_t index = blockIdx.x, tile_of_heads = blockIdx.y;
  const uint32_t of_each = p.heads / p.kv_heads, heads_max = of_each < TILE ? of_each : TILE;
  const uint32_t head_tiles = (of_each + heads_max - 1) / heads_max, kv_head = tile_of_heads / head_tiles;
  const uint32_t head_first = kv_head * of_each + tile_of_heads % head_tiles * heads_max, left = (kv_head + 1) * of_each - head_first;
  const uint32_t heads = heads_max < left ? heads_max : left;
  const Rows rows = find_rows(p, index, TILE / heads_max, true);
  const uint32_t* of_sequence = p.batch.spans + 4 * rows.sequence;
  const uint32_t first = seen_by(p, rows.first, of_sequence).first, end = seen_by(p, rows.first + rows.count - 1, of_sequence).end;
  uint32_t* told = reinterpret_cast<uint32_t*>(room);
  float* whole = reinterpret_cast<float*>(room + 16);
  __syncthreads();
  if (threadIdx.x == 0) *told = dev::is_last_of(p.arrived + tile_of_heads * gridDim.x + index, (end - 1) / SPAN - first / SPAN + 1);
  __syncthreads();
  if (!*told) return;
  const uint32_t dim = p.head_dim;
  const auto has = [&](uint32_t row) { return row >= p.row_first && row < p.row_end; };
#pragma unroll 1
  for (uint32_t query = threadIdx.x / 32; query < rows.count * heads_max; query += WARPS) {
    const uint32_t row = rows.first + query / heads_max, head = head_first + query % heads_max;
    if (!has(row) || query % heads_max >= heads) continue;
    const uint32_t spans = seen_by(p, row, of_sequence).spans;
    const float* parts = p.parts + (size_t)((row - p.row_first) * p.heads + head) * p.spans * (dim + 2);
#pragma unroll 1
    for (uint32_t i = 4 * (threadIdx.x % 32); i < dim; i += 128) {
      Folded folded = nothing_folded(p.sinks, head);
      float sums[4] = {};
#pragma unroll 4
      for (uint32_t span = 0; span < spans; span++) {
        const float* part = parts + span * (dim + 2);
        float of[4];
#pragma unroll
        for (int n = 0; n < 4; n++) of[n] = i + n < dim ? dev::others(part + 2 + i + n) : 0.0f;
        fold(folded, dev::others(part), dev::others(part + 1));
#pragma unroll
        for (int n = 0; n < 4; n++) sums[n] = fold_sum(folded, sums[n], of[n]);
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
        if (i + n >= dim) break;
        const float value = sums[n] / folded.total;
        p.out[(size_t)row * p.out_stride + head * dim + i + n] = value;
        whole[query * dim + i + n] = value;
      }
    }
  }
  if (!p.cut.pieces) return;
  // Where rows are cut, a block's heads are whole blocks of their columns.
  __syncthreads();
#pragma unroll 1
  for (uint32_t at = threadIdx.x / 32; BLOCK_COLS * (at + 1) <= rows.count * heads_max * dim; at += WARPS) {
    const uint32_t row = rows.first + BLOCK_COLS * at / (heads_max * dim), column = head_first * dim + BLOCK_COLS * at % (heads_max * dim);
    if (has(row)) cut_shared<false>(p.cut, row, column / BLOCK_COLS, whole + BLOCK_COLS * at);
  }
}

// A tile's keys and columns are shared out over SHARE warps; numbers of the cache are PIECES halves, and heads at most so many chunks wide.
template <uint32_t SHARE, int PIECES, uint32_t CHUNKS_MAX>
__device__ __forceinline__ void attend_tiles(const AttentionParams& p, unsigned char* room) {
  constexpr uint32_t TILES = WARPS / SHARE, QUERIES = TILE * TILES, STAGES = PIECES == 1 ? 4 : 2, STAGE_BYTES = PIECES * CHUNK_BYTES;
  constexpr uint32_t EIGHTS = SPAN / 8 / SHARE, SUMS = CHUNK_COLS / 8 / SHARE;  // of a warp: eights of keys, and of a chunk's columns
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = warp / SHARE, share = warp % SHARE;
  const uint32_t of_each = p.heads / p.kv_heads, heads = of_each < QUERIES ? of_each : QUERIES, rows_of_tile = QUERIES / heads;
  const uint32_t head_tiles = (of_each + heads - 1) / heads, kv_head = blockIdx.y / head_tiles;
  const uint32_t head_first = kv_head * of_each + blockIdx.y % head_tiles * heads, heads_left = (kv_head + 1) * of_each - head_first;
  // Of many, the last rows come first: they see the most keys.
  const Rows rows = SHARE == WARPS ? find_rows(p, blockIdx.x, rows_of_tile, true) : find_rows(p, gridDim.x - 1 - blockIdx.x, rows_of_tile, false);
  if (rows.count == 0 || rows.first >= p.row_end || rows.first + rows.count <= p.row_first) return;
  const uint32_t* of_sequence = p.batch.spans + 4 * rows.sequence;
  const Seen first_row = seen_by(p, rows.first, of_sequence), last_row = seen_by(p, rows.first + rows.count - 1, of_sequence);
  const uint32_t first = first_row.first, end = last_row.end;  // what any row of the block sees
  const uint32_t span_first = first / SPAN + (p.parts ? blockIdx.z : 0), span_end = p.parts ? span_first + 1 : (end - 1) / SPAN + 1;
  if (SPAN * span_first >= end) return;

  const uint32_t chunks = (p.head_dim + CHUNK_COLS - 1) / CHUNK_COLS;
  unsigned char* queries = room + STAGES * STAGE_BYTES;
  unsigned char* weights = queries + TILES * chunks * 2 * QUERY_BYTES;
  float* maxima = reinterpret_cast<float*>(weights + TILES * (SPAN / 16) * 2 * WEIGHT_BYTES);
  float* totals = maxima + TILES * SHARE * TILE;
  float* inverses = totals + TILES * BLOCKS_OF_KEYS * TILE;

  Bringer<PIECES> bringer;
  bringer.head = kv_head * kv_bytes(p.kv_type, p.head_dim);
  bringer.span = span_first;
  bringer.chunk = 0;
  bringer.find(p, rows.sequence, span_first, first, end);
  bringer.turn();
  if (span_first + 1 < span_end) bringer.find(p, rows.sequence, span_first + 1, first, end);
  uint32_t stage = 0, stage_free = 0;
  const auto begin = [&] {
    if (bringer.span < span_end) bringer.begin(p, chunks, room + stage_free * STAGE_BYTES);
    dev::brought();
  };
  const auto finish = [&] {
    if (bringer.span >= span_end) return;
    bringer.finish(p, room + stage_free * STAGE_BYTES);
    stage_free = stage_free + 1 == STAGES ? 0 : stage_free + 1;
    if (++bringer.chunk < 2 * chunks) return;
    bringer.chunk = 0;
    bringer.turn();
    if (++bringer.span + 1 < span_end) bringer.find(p, rows.sequence, bringer.span + 1, first, end);
  };
#pragma unroll 1
  for (uint32_t i = 0; i + 1 < STAGES; i++) {
    begin();
    finish();
  }
  // The next chunk is there, and another is begun where the last one was.
  const auto next = [&] {
    dev::wait_for_all_but<STAGES - 2>();
    __syncthreads();
    begin();
    const unsigned char* at = room + stage * STAGE_BYTES;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    return at;
  };

  // Lanes have eight columns each.
#pragma unroll 2
  for (uint32_t query = warp; query < QUERIES; query += WARPS) {
    const uint32_t row = query / heads, head = query % heads;
    uint32_t upper[4], lower[4];
    const float inverse = cut_query(p, row < rows.count && head < heads_left, rows.first + row, head_first + head, upper, lower);
    if (lane < 4 * chunks) {
      // A lane of products reads two columns of each eight at once.
      unsigned char* to = queries + ((query / TILE * chunks + lane / 4) * 2 * TILE + query % TILE) * 2 * CHUNK_COLS + 4 * (lane % 4);
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        *reinterpret_cast<uint32_t*>(to + 16 * i) = upper[i];
        *reinterpret_cast<uint32_t*>(to + QUERY_BYTES + 16 * i) = lower[i];
      }
    }
    if (lane == 0) inverses[query] = inverse;
  }

  // A lane's two queries, eight apart: each head of a row has a number, from the step's first row on.
  uint32_t number[2], sees_first[2], sees_end[2];
  Folded folded[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    const uint32_t query = TILE * tile + 8 * h + lane / 4;
    const bool there = query / heads < rows.count && query % heads < heads_left;
    const uint32_t row = rows.first + (there ? query / heads : 0), head = head_first + (there ? query % heads : 0);
    number[h] = dev::not_before(row * p.heads + head);  // kept as it is, not what it is made of
    const Seen seen = seen_by(p, row, of_sequence);
    sees_first[h] = there ? seen.first : NONE;  // of which no key is
    sees_end[h] = seen.end;
    folded[h] = nothing_folded(p.sinks, head);
  }
  float sums[CHUNKS_MAX][SUMS][4] = {};

#pragma unroll 1
  for (uint32_t span = span_first; span < span_end; span++) {
    const auto has_keys = [&](uint32_t block) { return SPAN * span + 32 * block < end && SPAN * span + 32 * block + 32 > first; };
    // What is left of the span, where a query sees it.
    const auto leaves = [&](uint32_t h) { return p.parts && span >= sees_first[h] / SPAN && SPAN * span < sees_end[h] && number[h] >= p.row_first * p.heads && number[h] < p.row_end * p.heads; };
    const auto part_of = [&](uint32_t h) { return p.parts + ((size_t)(number[h] - p.row_first * p.heads) * p.spans + span - sees_first[h] / SPAN) * (p.head_dim + 2); };
    float scores[EIGHTS][4] = {};
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
      const unsigned char* at = next();
      uint32_t query[2][2][4];
#pragma unroll
      for (uint32_t piece = 0; piece < 2; piece++) {
        const unsigned char* from = queries + ((tile * chunks + chunk) * 2 + piece) * QUERY_BYTES + 16 * lane;
        dev::shared16(from, query[piece][0]);
        dev::shared16(from + QUERY_BYTES / 2, query[piece][1]);
      }
#pragma unroll
      for (uint32_t block = 0; block < EIGHTS / 4; block++) {
        if (!has_keys(share * (EIGHTS / 4) + block)) continue;
#pragma unroll
        for (uint32_t eight = 4 * block; eight < 4 * block + 4; eight++) {
          uint32_t key[PIECES][4];
#pragma unroll
          for (uint32_t piece = 0; piece < PIECES; piece++) dev::shared_squares(at + place_of(8 * share * EIGHTS + lane % 8, lane / 8) + piece * CHUNK_BYTES + 16 * CHUNK_COLS * eight, key[piece]);
#pragma unroll
          for (uint32_t step = 0; step < 2; step++) {
            const auto multiply = [&](uint32_t of_query, uint32_t of_key) {
              const uint32_t a[4] = {query[of_query][0][2 * step], query[of_query][1][2 * step], query[of_query][0][2 * step + 1], query[of_query][1][2 * step + 1]};
              dev::multiply_16(a, key[of_key][2 * step], key[of_key][2 * step + 1], scores[eight]);
            };
            multiply(1, 0);
            if (PIECES == 2) multiply(0, PIECES - 1);
            multiply(0, 0);
          }
        }
      }
      finish();
    }

    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (uint32_t eight = 0; eight < EIGHTS; eight++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t h = i / 2, key = SPAN * span + 8 * (share * EIGHTS + eight) + 2 * (lane % 4) + i % 2;
        const bool sees = key >= sees_first[h] && key < sees_end[h];
        float score = sees ? dev::times(scores[eight][i], inverses[TILE * tile + 8 * h + lane / 4]) : -INFINITY;
        if (sees && p.softcap != 0.0f) score = capped(p, score);
        if (sees && p.slopes) score = sloped(p, number[h] % p.heads, sees_end[h] - 1 - key, score);
        scores[eight][i] = score;
        largest[h] = fmaxf(largest[h], score);
      }
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      largest[h] = dev::quad_max(largest[h]);
      if (lane % 4 == 0) maxima[(tile * SHARE + share) * TILE + 8 * h + lane / 4] = largest[h];
    }
    __syncthreads();
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
      for (uint32_t of = 0; of < SHARE; of++) largest[h] = fmaxf(largest[h], maxima[(tile * SHARE + of) * TILE + 8 * h + lane / 4]);
    }
#pragma unroll
    for (uint32_t block = 0; block < EIGHTS / 4; block++) {
      const uint32_t of_span = share * (EIGHTS / 4) + block;
      float total[2] = {};
#pragma unroll
      for (uint32_t step = 2 * block; step < 2 * block + 2; step++) {
        uint32_t upper[4], lower[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
          float weight[2];
#pragma unroll
          for (uint32_t n = 0; n < 2; n++) {
            const float score = scores[2 * step + i / 2][2 * (i % 2) + n];
            weight[n] = score == -INFINITY ? 0.0f : WEIGHT_FACTOR * expf(score - largest[i % 2]);
            total[i % 2] += weight[n];
          }
          cut_in_two(weight[0], weight[1], upper[i], lower[i]);
        }
        unsigned char* to = weights + (tile * (SPAN / 16) + share * (EIGHTS / 2) + step) * 2 * WEIGHT_BYTES + 16 * lane;
        dev::store16(to, upper);
        dev::store16(to + WEIGHT_BYTES, lower);
      }
#pragma unroll
      for (uint32_t h = 0; h < 2; h++) {
        total[h] = dev::quad_sum(total[h]);
        if (lane % 4 == 0) totals[(tile * BLOCKS_OF_KEYS + of_span) * TILE + 8 * h + lane / 4] = total[h];
      }
    }

#pragma unroll
    for (uint32_t chunk = 0; chunk < CHUNKS_MAX; chunk++) {
      if (chunk >= chunks) break;
      const unsigned char* at = next();
      if (chunk == 0) {
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
          const float* of = totals + tile * BLOCKS_OF_KEYS * TILE + 8 * h + lane / 4;
          const float total = ((of[0] + of[TILE]) + (of[2 * TILE] + of[3 * TILE])) * (1.0f / WEIGHT_FACTOR);
          if (!p.parts) fold(folded[h], largest[h], total);
          if (share == 0 && lane % 4 == 0 && leaves(h)) {
            float* part = part_of(h);
            part[0] = largest[h];
            part[1] = total;
          }
        }
      }
      float c[SUMS][2][4] = {};  // of the first halves of weights, and of the others
#pragma unroll
      for (uint32_t block = 0; block < BLOCKS_OF_KEYS; block++) {
        if (!has_keys(block)) continue;
        uint32_t weight[2][2][4];
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
#pragma unroll
          for (uint32_t piece = 0; piece < 2; piece++) dev::shared16(weights + ((tile * (SPAN / 16) + 2 * block + step) * 2 + piece) * WEIGHT_BYTES + 16 * lane, weight[step][piece]);
        }
#pragma unroll
        for (uint32_t eight = 0; eight < SUMS; eight++) {
          uint32_t value[PIECES][4];
#pragma unroll
          for (uint32_t piece = 0; piece < PIECES; piece++) dev::shared_turned(at + piece * CHUNK_BYTES + place_of(32 * block + lane, share * SUMS + eight), value[piece]);
#pragma unroll
          for (uint32_t step = 0; step < 2; step++) {
            dev::multiply_16(weight[step][1], value[0][2 * step], value[0][2 * step + 1], c[eight][1]);
            if (PIECES == 2) dev::multiply_16(weight[step][0], value[PIECES - 1][2 * step], value[PIECES - 1][2 * step + 1], c[eight][1]);
            dev::multiply_16(weight[step][0], value[0][2 * step], value[0][2 * step + 1], c[eight][0]);
          }
        }
      }
#pragma unroll
      for (uint32_t eight = 0; eight < SUMS; eight++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
          const uint32_t column = CHUNK_COLS * chunk + 8 * (share * SUMS + eight) + 2 * (lane % 4) + i % 2;
          const float sum = (c[eight][0][i] + c[eight][1][i]) * (1.0f / WEIGHT_FACTOR);
          if (!p.parts) sums[chunk][eight][i] = fold_sum(folded[i / 2], sums[chunk][eight][i], sum);
          if (column < p.head_dim && leaves(i / 2)) part_of(i / 2)[2 + column] = sum;
        }
      }
      finish();
    }
  }
  if (p.parts) {
    if (SHARE == WARPS && p.arrived) join_tile(p, room);
    return;
  }
  // Heads are put where keys and values were, in case rows are cut; what is there does not hang on that, which would take registers.
  constexpr bool CUTS = SHARE == WARPS;
  float* whole = reinterpret_cast<float*>(room);
  if (CUTS) __syncthreads();
#pragma unroll
  for (uint32_t chunk = 0; chunk < CHUNKS_MAX; chunk++) {
    if (chunk >= chunks) break;
#pragma unroll
    for (uint32_t eight = 0; eight < SUMS; eight++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t h = i / 2, column = CHUNK_COLS * chunk + 8 * (share * SUMS + eight) + 2 * (lane % 4) + i % 2;
        if (sees_first[h] == NONE || column >= p.head_dim) continue;
        const float value = sums[chunk][eight][i] / folded[h].total;
        p.out[(size_t)(number[h] / p.heads) * p.out_stride + number[h] % p.heads * p.head_dim + column] = value;
        if (CUTS) whole[(TILE * tile + 8 * h + lane / 4) * p.head_dim + column] = value;
      }
    }
  }
  if (!CUTS || !p.cut.pieces) return;
  // Rows are cut where heads of a block are whole blocks of their columns. What each query is, as in `number`: nothing else is kept for
  // this while keys are multiplied.
  uint32_t* numbers = reinterpret_cast<uint32_t*>(maxima);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (share == 0 && lane % 4 == 0) numbers[8 * h + lane / 4] = sees_first[h] == NONE ? NONE : number[h];
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t at = threadIdx.x / 32; BLOCK_COLS * (at + 1) <= TILE * p.head_dim; at += WARPS) {
    const uint32_t query = BLOCK_COLS * at / p.head_dim, of = numbers[query];
    if (of == NONE) continue;
    const uint32_t column = of % p.heads * p.head_dim + BLOCK_COLS * at - query * p.head_dim;
    // Not word by word, for want of registers.
    cut_shared<false>(p.cut, of / p.heads, column / BLOCK_COLS, whole + BLOCK_COLS * at);
  }
}

#define ATTENTION_TILES(name, share, pieces, chunks, blocks) \
  WIDE_KERNEL(name, AttentionParams, THREADS, blocks) {      \
    SHARED(unsigned char, room);                             \
    attend_tiles<share, pieces, chunks>(p, room);            \
  }
ATTENTION_TILES(attention_few, 4, 1, 4, 4)
ATTENTION_TILES(attention_few_q8, 4, 2, 4, 3)
ATTENTION_TILES(attention_wide, 4, 1, 8, 3)
ATTENTION_TILES(attention_wide_q8, 4, 2, 8, 2)
ATTENTION_TILES(attention_many, 2, 1, 4, 3)
ATTENTION_TILES(attention_many_q8, 2, 2, 4, 2)
#undef ATTENTION_TILES
