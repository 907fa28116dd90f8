// Attention of a chunk by a matrix unit, see `unit.h`: 32 queries by 32 tokens at a time. Keys and values are packed as the
// tiles of W are. Included by `prompt_attention.cpp`.
#pragma once
#include "unit.h"

#ifdef MATRIX_UNIT
// A float32 number is two bf16 numbers, which takes as much scratch as the number itself.
template <typename Number>
constexpr int PLANES = sizeof(Number) / sizeof(uint16_t);

// Tiles of the keys of 16 tokens from `token` on: 32 columns each.
template <typename Number>
static uint16_t* key_tiles(const Chunk<Number>& c, int64_t kv_head, int64_t token, int plane) {
  return (uint16_t*)c.packed_keys + ((kv_head * c.padded() + token) * PLANES<Number> + plane * LINE) * c.size;
}

// Tiles of the values of a block of 16 columns from `token` on: 32 tokens each.
template <typename Number>
static uint16_t* value_tiles(const Chunk<Number>& c, int64_t kv_head, int64_t block, int64_t token, int plane) {
  const int64_t place = (kv_head * c.size / LINE + block) * PLANES<Number> + plane;
  return (uint16_t*)c.packed_values + (place * c.padded() + token) * LINE;
}

// Splits a row of keys or values into bf16 numbers; a negative row number gives zeros.
template <typename Number>
static void split_row(const Chunk<Number>& c, const Rows<Number>& rows, int64_t row, Number* room, uint16_t* upper,
                      uint16_t* rest) {
  const Number zeros[MOST_SIZE] = {};
  const Number* numbers = row < 0 ? zeros : numbers_of(rows, row, room);
  for (int64_t i = 0; i < c.size; i += LINE) split(numbers + i, upper + i, rest + i);
}

// Packs the keys and values of 16 tokens. Those that are not there are zeros.
template <typename Number>
static void pack_in_tiles(const Chunk<Number>& c, int64_t kv_head, int64_t token) {
  const __m512i below = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                           _mm512_set1_epi32(LINE));
  alignas(64) uint16_t keys[2][MOST_SIZE] = {}, values[2][2][MOST_SIZE] = {};  // by plane, and of two tokens
  Number room[MOST_SIZE];
  for (int t = 0; t < LINE; t++) {
    const int64_t row = token + t < c.tokens ? c.slots[token + t] * c.kv_heads + kv_head : -1;
    split_row(c, c.keys, row, room, keys[0], keys[1]);
    split_row(c, c.values, row, room, values[0][t % 2], values[1][t % 2]);
    for (int plane = 0; plane < PLANES<Number>; plane++) {
      uint32_t* to = (uint32_t*)key_tiles(c, kv_head, token, plane) + t;
      for (int64_t i = 0; i < c.size; i += CHUNK)
        _mm512_i32scatter_epi32(to + i / 2 * LINE, below, _mm512_load_si512(keys[plane] + i), 4);
      if (t % 2 == 0) continue;
      for (int64_t i = 0; i < c.size; i += LINE) {
        const auto line = [&](int of) { return _mm512_cvtepu16_epi32(_mm256_load_si256((__m256i*)(values[plane][of] + i))); };
        uint16_t* pair = value_tiles(c, kv_head, i / LINE, token, plane) + (t - 1) * LINE;
        _mm512_storeu_si512(pair, _mm512_or_si512(line(0), _mm512_slli_epi32(line(1), 16)));
      }
    }
  }
}

// See `Queries`. What is multiplied is in tiles.
template <typename Number>
struct UnitQueries {
  static constexpr int ROWS = STEP;
  alignas(64) uint16_t query[2][MOST_SIZE / CHUNK][ROWS][CHUNK], weights[2][TOKENS / CHUNK][ROWS][CHUNK];
  alignas(64) float scores[ROWS][TOKENS], sum[ROWS][MOST_SIZE];
  float most[ROWS], total[ROWS];
  int64_t row[ROWS];

  void set_query(int r, const Number* x, int64_t size) {
    for (int64_t i = 0; i < size; i += LINE)
      split(x + i, query[0][i / CHUNK][r] + i % CHUNK, query[1][i / CHUNK][r] + i % CHUNK);
  }

  void set_weights(int r, int t, const Line& line) {
    Number numbers[LINE];
    store(numbers, line, LINE);
    split(numbers, weights[0][t / CHUNK][r] + t % CHUNK, weights[1][t / CHUNK][r] + t % CHUNK);
  }
};

template <typename Number>
static void score(const Chunk<Number>& c, int64_t kv_head, int64_t token, int count, UnitQueries<Number>& q) {
  for (int t = 0; t < count; t += WIDE) {
    const SumsAt scores{q.scores[0] + t, LINE, 16 * TOKENS, TOKENS};
    scores.zero();
    for_pairs<PLANES<Number>, PLANES<Number>>([&](int of_query, int of_key) {
      const uint16_t *first = key_tiles(c, kv_head, token + t, of_key), *second = key_tiles(c, kv_head, token + t + LINE, of_key);
      for (int64_t i = 0; i < c.size / CHUNK; i++) add_tiles(q.query[of_query][i][0], first + i * TILE, second + i * TILE);
    });
    scores.store();
  }
}

template <typename Number>
static void add_values(const Chunk<Number>& c, int64_t kv_head, int64_t token, int count, UnitQueries<Number>& q) {
  for (int64_t i = 0; i < c.size; i += WIDE) {
    const SumsAt sums{q.sum[0] + i, LINE, 16 * MOST_SIZE, MOST_SIZE};
    sums.load();
    for_pairs<PLANES<Number>, PLANES<Number>>([&](int of_weight, int of_value) {
      const auto values = [&](int64_t block) { return value_tiles(c, kv_head, block, token, of_value); };
      const uint16_t *first = values(i / LINE), *second = values(i / LINE + 1);
      for (int t = 0; t < count / CHUNK; t++) add_tiles(q.weights[of_weight][t][0], first + t * TILE, second + t * TILE);
    });
    sums.store();
  }
}
#endif
