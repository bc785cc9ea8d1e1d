// What a card's tensor cores do with a warp's numbers: products of 16 columns or 32, which the last lane to come computes for all. A part of
// emulator.hpp.
#pragma once

namespace dev {

#define ONE_PIECE 1
#define TWO_PIECES 2
#define THREE_PIECES 3
// Sums side by side, which stay in registers: an array of them is stored and loaded again for each product.
typedef float Eight __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64)));
// As the device's: eight columns by themselves, the smallest products first, of 11 bits of each number.
inline void multiply(const Fragment& x, const float w[8], int pieces, float sums[4]) {
  uint32_t words[24];
  __builtin_memcpy(words, x.above, 32);
  __builtin_memcpy(words + 8, x.below, 32);
  __builtin_memcpy(words + 16, w, 32);
  const uint32_t* sum = emulator::meet(emulator::Meeting::Multiply, words, 24, [pieces](auto& in, auto& out) {
    // By column and output, so that a row's products are side by side.
    Eight first[32], second[32], third[32];
    for (int output = 0; output < 8; output++) {
      for (int column = 0; column < 32; column++) {
        const float value = emulator::bits<float>(in[4 * output + column / 8][16 + column % 8]);
        first[column][output] = upper(value);
        const float rest = value - first[column][output];
        second[column][output] = upper(rest);
        third[column][output] = upper(rest - second[column][output]);
      }
    }
    for (int row = 0; row < 16; row++) {
      float x[32];
      Eight c[4] = {};
      bool any = false;
      for (int column = 0; column < 32; column++) {
        x[column] = emulator::bits<float>(in[row % 8 * 4 + column / 8][row / 8 * 8 + column % 8]);
        any |= x[column] != 0.0f;
      }
      // Rows that are not there cost nothing here.
      for (int s = 0; any && s < 4; s++) {
        const auto add = [&](bool lower_x, const Eight (&weights)[32]) {
          for (int k = 0; k < 8; k++) {
            const int column = 8 * (k % 4) + 2 * s + k / 4;
            const float value = lower_x ? upper(lower(x[column])) : upper(x[column]);
            c[s] += value * weights[column];
          }
        };
        if (pieces == THREE_PIECES) add(false, third);
        add(true, first);
        if (pieces != ONE_PIECE) add(false, second);
        add(false, first);
      }
      const Eight sums = (c[0] + c[1]) + (c[2] + c[3]);
      for (int output = 0; output < 8; output++) {
        out[row % 8 * 4 + output / 2][row / 8 * 2 + output % 2] = emulator::bits<uint32_t>(float(sums[output]));
      }
    }
  });
  for (int i = 0; i < 4; i++) sums[i] += emulator::bits<float>(sum[i]);
}

struct Halves {
  float operator()(uint32_t word) const { return from_half(static_cast<uint16_t>(word)); }
};
struct Bf16s {
  float operator()(uint32_t word) const { return from_bits(word << 16); }
};
// Eight numbers of 16 bits.
template <class Number>
inline void eight_numbers(const uint32_t words[4], Number number, float numbers[8]) {
#ifdef __F16C__
  if constexpr (std::is_same_v<Number, Halves>) {
    Four halves;
    Eight floats;
    __builtin_memcpy(&halves, words, sizeof halves);
    asm("vcvtph2ps %1, %0" : "=x"(floats) : "x"(halves));
    __builtin_memcpy(numbers, &floats, sizeof floats);
    return;
  }
#endif
  for (int i = 0; i < 8; i++) numbers[i] = number(words[i / 2] >> (16 * (i % 2)));
}
// Eight numbers of 16 bits of each of eight rows, by columns: the numbers of one in the order of the rows.
inline void turn(const void* const rows[8], uint32_t columns[8][4]) {
#ifdef __SSE2__
  __m128i a[8], b[8];
  for (int i = 0; i < 8; i++) a[i] = _mm_loadu_si128(static_cast<const __m128i*>(rows[i]));
  // Thrice: each row beside that which is four behind it.
  const auto beside = [](const __m128i (&from)[8], __m128i (&to)[8]) {
    for (int i = 0; i < 4; i++) to[2 * i] = _mm_unpacklo_epi16(from[i], from[i + 4]), to[2 * i + 1] = _mm_unpackhi_epi16(from[i], from[i + 4]);
  };
  beside(a, b), beside(b, a), beside(a, b);
  for (int i = 0; i < 8; i++) _mm_storeu_si128(reinterpret_cast<__m128i*>(columns[i]), b[i]);
#else
  for (int row = 0; row < 8; row++) {
    uint16_t numbers[8];
    __builtin_memcpy(numbers, rows[row], sizeof numbers);
    for (int column = 0; column < 8; column++) {
      uint32_t& word = columns[column][row / 2];
      word = row % 2 == 0 ? numbers[column] : word | static_cast<uint32_t>(numbers[column]) << 16;
    }
  }
#endif
}

// As the device's, by 16 columns at a time, which are added up before they are added; sums are kept in f32.
template <int PIECES, class Number>
inline void multiply_pieces(emulator::Meeting meeting, const uint32_t above[4], const uint32_t below[4], const uint32_t (*x)[4], float c[4], Number number) {
  constexpr int SUMS = 8 + 4 * PIECES;
  uint32_t words[SUMS + 4];
  __builtin_memcpy(words, above, 16);
  __builtin_memcpy(words + 4, below, 16);
  __builtin_memcpy(words + 8, x, 16 * PIECES);
  __builtin_memcpy(words + SUMS, c, 16);
  const uint32_t* sum = emulator::meet(meeting, words, SUMS + 4, [number](auto& in, auto& out) {
    // Which column is number i of the eight that a lane of four brings: pairs of the first four are of the first 16.
    const auto column_of = [](int eight, int i) { return i / 2 * 8 + eight * 2 + i % 2; };
    Sixteen w[32];
    for (int eight = 0; eight < 4; eight++) {
      for (int half = 0; half < 2; half++) {
        const void* rows[8];
        uint32_t columns[8][4];
        for (int output = 0; output < 8; output++) rows[output] = in[4 * output + eight] + 4 * half;
        turn(rows, columns);
        for (int i = 0; i < 8; i++) eight_numbers(columns[i], number, reinterpret_cast<float*>(w + column_of(eight, i)) + 8 * half);
      }
    }
    Sixteen none = {};
    for (const Sixteen& column : w) none += 0.0f * column;
    bool finite = true;
    for (int output = 0; output < 16; output++) finite &= none[output] == 0.0f;
    // What is added to, by rows.
    uint32_t sums_of[8][16];
    const auto each_sum = [&sums_of](auto move) {
      for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) move(lane, i, sums_of[lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8]);
      }
    };
    each_sum([&in](int lane, int i, uint32_t& sum) { sum = in[lane][SUMS + i]; });
    for (int row = 0; row < 8; row++) {
      uint32_t any[PIECES] = {}, of_any = 0;
      for (int piece = 0; piece < PIECES; piece++) {
        for (int eight = 0; eight < 4; eight++) {
          const uint32_t* words = in[4 * row + eight] + 8 + 4 * piece;
          any[piece] |= (words[0] | words[1] | words[2] | words[3]) & 0x7fff7fff;
        }
        of_any |= any[piece];
      }
      // Rows that are not there cost nothing here.
      if (!of_any) continue;
      Sixteen sums;
      __builtin_memcpy(&sums, sums_of[row], sizeof sums);
      for (int piece = PIECES - 1; piece >= 0; piece--) {
        if (!any[piece]) continue;
        float values[32];
        for (int eight = 0; eight < 4; eight++) {
          float numbers[8];
          eight_numbers(in[4 * row + eight] + 8 + 4 * piece, number, numbers);
          for (int i = 0; i < 8; i += 2) __builtin_memcpy(values + column_of(eight, i), numbers + i, 8);
        }
        // What is not there makes no number of what is none.
        Sixteen first = {}, second = {};
        for (int column = 0; column < 16; column++) {
          if (finite || values[column] != 0.0f) first += values[column] * w[column];
          if (finite || values[16 + column] != 0.0f) second += values[16 + column] * w[16 + column];
        }
        sums += first;
        sums += second;
      }
      __builtin_memcpy(sums_of[row], &sums, sizeof sums);
    }
    each_sum([&out](int lane, int i, uint32_t& sum) { out[lane][i] = sum; });
  });
  __builtin_memcpy(c, sum, 16);
}
template <int PIECES>
inline void multiply_halves(const uint32_t above[4], const uint32_t below[4], const uint32_t (*x)[4], float c[4]) {
  multiply_pieces<PIECES>(emulator::Meeting::MultiplyHalves, above, below, x, c, Halves());
}
inline void multiply_bf16s(const uint32_t above[4], const uint32_t below[4], const uint32_t (*x)[4], float c[4]) {
  multiply_pieces<3>(emulator::Meeting::MultiplyBf16s, above, below, x, c, Bf16s());
}

// As the device's, in the order of columns.
inline void multiply_16(const uint32_t a[4], uint32_t b, uint32_t b_behind, float c[4]) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b, b_behind};
  const uint32_t* sum = emulator::meet(emulator::Meeting::Multiply16, words, 6, [](auto& in, auto& out) {
    Eight of_b[16];
    uint32_t words[8], never = 0;
    float numbers[16];
    // Of eight rows, the words that are first in their lanes, and those behind.
    for (int half = 0; half < 2; half++) {
      uint32_t rows[8][4], columns[8][4];
      const void* each[8];
      for (int row = 0; row < 8; row++) {
        for (int i = 0; i < 4; i++) {
          const uint32_t word = rows[row][i] = in[4 * row + i][4 + half];
          never |= (word & 0x7c00) == 0x7c00 || (word & 0x7c000000) == 0x7c000000;
        }
        each[row] = rows[row];
      }
      turn(each, columns);
      for (int i = 0; i < 8; i++) eight_numbers(columns[i], Halves(), reinterpret_cast<float*>(of_b + 8 * half + i));
    }
    for (int row = 0; row < 16; row++) {
      Eight sums = {};
      for (int i = 0; i < 4; i++) words[i] = in[row % 8 * 4 + i][row / 8], words[4 + i] = in[row % 8 * 4 + i][2 + row / 8];
      uint32_t any = 0;
      for (const uint32_t word : words) any |= word & 0x7fff7fff;
      // Rows that are not there cost nothing here; but nothing times what is no number is none.
      if (never || any) {
        eight_numbers(words, Halves(), numbers);
        eight_numbers(words + 4, Halves(), numbers + 8);
        for (int column = 0; column < 16; column++) sums += numbers[column] * of_b[column];
      }
      for (int pair = 0; pair < 4; pair++) __builtin_memcpy(out[row % 8 * 4 + pair] + row / 8 * 2, reinterpret_cast<const float*>(&sums) + 2 * pair, 8);
    }
  });
  for (int i = 0; i < 4; i++) c[i] += emulator::bits<float>(sum[i]);
}

}  // namespace dev
