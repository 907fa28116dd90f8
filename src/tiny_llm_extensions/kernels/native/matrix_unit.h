// Products of many rows by the matrix unit of a processor with AMX: 16 rows of 32 bf16 numbers by 16 outputs in 16 cycles. W
// is of bf16 numbers, whose lines are the unit's tiles already, or of 4 or 8 bits. Sums stay in the unit until all columns
// are added, so the scales of groups must be in W already: a number of W is two bf16 numbers, its upper and its next 8
// bits. x is one if it is bf16, and two if it is float32. So nothing is rounded to fewer than 16 bits, and x, unlike in
// `quantized_tiles.h`, not at all if it is bf16.
#pragma once
#include "lines.h"

using quantized::QuantizedProduct;

constexpr int CHUNK = 32;         // columns of a tile: a group has 1, 2 or 4 chunks
constexpr int STEP = 32;          // rows that are multiplied together: two tiles of 16
constexpr int BLOCKS = 2;         // blocks of 16 outputs that are multiplied together
constexpr int MOST_ROWS = 512;    // for which W is unpacked once
constexpr int MOST_CHUNKS = 32;   // of which W is unpacked at a time: they stay in the processor's second cache
constexpr int TILE = 16 * CHUNK;  // numbers

// The rows of a product in tiles of the same size; the last tile may be smaller.
struct Tiles {
  int64_t rows;

  int64_t count() const { return (rows + MOST_ROWS - 1) / MOST_ROWS; }
  int64_t size() const { return ((rows + count() - 1) / count() + STEP - 1) / STEP * STEP; }
  int64_t rows_at(int64_t first) const { return rows - first < size() ? rows - first : size(); }
  int64_t numbers(int64_t columns) const { return (rows + STEP) * columns; }
  int64_t packed(int64_t columns) const { return 2 * numbers(columns); }
};

// Whether the unit multiplies by a plain matrix.
static inline bool takes_plain(bool is_bf16, int64_t columns) { return is_bf16 && columns % CHUNK == 0; }

static inline int planes_of(const QuantizedProduct& p) { return p.is_bf16 ? 1 : 2; }

// The upper halves of two lines of floats as pairs of bf16 numbers.
static inline __m512i upper_halves(const Floats& even, const Floats& odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32((__m512i)even, 16), (__m512i)odd);
}

// What is left of each number without its upper half, rounded to the nearest number that has no other half.
static inline Floats rest_of(const Floats& numbers) {
  const Floats rest = numbers - (Floats)((Words)numbers & 0xffff0000u);
  return (Floats)((Words)rest + 0x8000u);
}

static inline void pack_chunk(const uint16_t* x, uint16_t* to) { memcpy(to, x, CHUNK * sizeof *x); }

static inline void pack_chunk(const float* x, uint16_t* to) {
  for (int i = 0; i < CHUNK; i += LINE) {
    const Floats numbers = vector_at<Floats>(x + i), rest = rest_of(numbers);
    _mm256_storeu_si256((__m256i*)(to + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)numbers, 16)));
    _mm256_storeu_si256((__m256i*)(to + 2 * TILE + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)rest, 16)));
  }
}

// Packs the columns of a row from `from` to `to`. A packed x is (rows / STEP, chunks, planes, STEP, CHUNK).
template <typename Number>
static void round_groups(const QuantizedProduct& p, const Number* x, int64_t row, int64_t from, int64_t to) {
  const int planes = planes_of(p);
  uint16_t* packed = (uint16_t*)p.rounded + (row / STEP * p.columns + from) * STEP * planes + row % STEP * CHUNK;
  for (x += row * p.columns; from < to; from += CHUNK, packed += planes * 2 * TILE) pack_chunk(x + from, packed);
}

// Some chunks of two blocks of W, of which each word has two columns of an output: their upper halves, and the rest.
struct Panel {
  alignas(64) uint32_t words[MOST_CHUNKS][BLOCKS][2][CHUNK / 2][LINE];
};

// Four columns of 16 outputs as two pairs.
static inline void unpack_four(const Bytes& four, const Line& scale, const Line& bias, uint32_t (*upper)[LINE],
                               uint32_t (*rest)[LINE]) {
  Floats columns[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    columns[i] = __builtin_convertvector((Ints)(four.part[0] >> (8 * i) & 255), Floats) * scale.part[0] + bias.part[0];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    _mm512_store_si512(upper[i], upper_halves(columns[2 * i], columns[2 * i + 1]));
    _mm512_store_si512(rest[i], upper_halves(rest_of(columns[2 * i]), rest_of(columns[2 * i + 1])));
  }
}

template <int BITS, typename Constant>
static void unpack(const QuantizedProduct& p, int64_t block, int64_t from, int64_t chunks, int place, Panel& to) {
  for (int64_t column = from; column < from + chunks * CHUNK; column += 8) {
    const int64_t chunk = (column - from) / CHUNK, pair = column % CHUNK / 2;
    const Constant* constants = (const Constant*)p.constants + (block * p.groups() + column / p.group) * 2 * LINE;
    const Line scale = constants_at(constants), bias = constants_at(constants + LINE);
    const uint8_t* w = p.w + (block * p.columns + column) * LINE * BITS / 8;
    const Bytes line = bytes_at(w);
    auto &upper = to.words[chunk][place][0], &rest = to.words[chunk][place][1];
    unpack_four(BITS == 4 ? low_nibbles(line) : line, scale, bias, upper + pair, rest + pair);
    unpack_four(BITS == 4 ? high_nibbles(line) : bytes_at(w + 4 * LINE), scale, bias, upper + pair + 2, rest + pair + 2);
  }
}

template <int BITS, typename... Where>
static void unpack(const QuantizedProduct& p, Where&&... where) {
  if (p.type_of_constants == quantized::OF_FLOAT16) return unpack<BITS, Float16>(p, where...);
  if (p.type_of_constants == quantized::OF_BF16) return unpack<BITS, uint16_t>(p, where...);
  unpack<BITS, float>(p, where...);
}

// Sums of 32 rows by two blocks: the tiles 4 to 7.
struct Sums {
  alignas(64) float of[2][BLOCKS][16][LINE];
};

// The tiles 4 to 7 += 32 rows of x by a plane of two blocks of W.
static inline void add_products(const uint16_t* x, const void* first, const void* second) {
  _tile_loadd(0, x, 64);
  _tile_loadd(1, x + TILE, 64);
  _tile_loadd(2, first, 64);
  _tile_loadd(3, second, 64);
  _tile_dpbf16ps(4, 0, 2);
  _tile_dpbf16ps(5, 0, 3);
  _tile_dpbf16ps(6, 1, 2);
  _tile_dpbf16ps(7, 1, 3);
}

// `add(i)` for each chunk.
template <typename Add>
static inline void add_chunks(int64_t chunks, Sums& sums, Add add) {
  _tile_loadd(4, sums.of[0][0], 64);
  _tile_loadd(5, sums.of[0][1], 64);
  _tile_loadd(6, sums.of[1][0], 64);
  _tile_loadd(7, sums.of[1][1], 64);
  for (int64_t i = 0; i < chunks; i++) add(i);
  _tile_stored(4, sums.of[0][0], 64);
  _tile_stored(5, sums.of[0][1], 64);
  _tile_stored(6, sums.of[1][0], 64);
  _tile_stored(7, sums.of[1][1], 64);
}

template <int PLANES>
static void add_chunks(const uint16_t* x, const Panel& w, int64_t chunks, Sums& sums) {
  add_chunks(chunks, sums, [&](int64_t i) {
    const auto add = [&](int of_x, int of_w) {
      add_products(x + (i * PLANES + of_x) * 2 * TILE, w.words[i][0][of_w], w.words[i][1][of_w]);
    };
    add(0, 1);
    add(0, 0);
    if (PLANES == 2) add(1, 0);
  });
}

// What one thread computes: a tile by up to BLOCKS blocks. A product has `pieces_of` of them.
struct Piece {
  int64_t row, rows, block, blocks;
};

static int64_t pieces_of(const QuantizedProduct& p) {
  return Tiles{p.rows}.count() * ((p.blocks() + BLOCKS - 1) / BLOCKS);
}

static Piece piece_at(const QuantizedProduct& p, int64_t i) {
  const Tiles tiles{p.rows};
  const int64_t wide = (p.blocks() + BLOCKS - 1) / BLOCKS, row = i / wide * tiles.size(), block = i % wide * BLOCKS;
  return {row, tiles.rows_at(row), block, p.blocks() - block < BLOCKS ? p.blocks() - block : BLOCKS};
}

// Sums of a piece by a plain matrix.
static void multiply_plain(const QuantizedProduct& p, const Piece& piece, int64_t steps, Sums* sums) {
  const int64_t chunks = p.columns / CHUNK;
  const uint16_t* x = (const uint16_t*)p.rounded + piece.row * p.columns;
  const uint16_t* w = (const uint16_t*)p.w + piece.block * chunks * TILE;
  const uint16_t* second = w + (piece.blocks - 1) * chunks * TILE;  // where there is one block, it is computed twice
  for (int64_t i = 0; i < steps; i++, x += p.columns * STEP)
    add_chunks(chunks, sums[i], [&](int64_t k) { add_products(x + 2 * k * TILE, w + k * TILE, second + k * TILE); });
}

static void multiply_packed(const QuantizedProduct& p, const Piece& piece, int64_t steps, Sums* sums) {
  const int planes = planes_of(p);
  Panel panel;
  for (int64_t from = 0; from < p.columns; from += MOST_CHUNKS * CHUNK) {
    const int64_t left = (p.columns - from) / CHUNK, chunks = left < MOST_CHUNKS ? left : MOST_CHUNKS;
    for (int b = 0; b < piece.blocks; b++)
      p.bits == 4 ? unpack<4>(p, piece.block + b, from, chunks, b, panel)
                  : unpack<8>(p, piece.block + b, from, chunks, b, panel);
    const uint16_t* x = (const uint16_t*)p.rounded + (piece.row * p.columns + from * STEP) * planes;
    for (int64_t i = 0; i < steps; i++, x += p.columns * STEP * planes)
      planes == 1 ? add_chunks<1>(x, panel, chunks, sums[i]) : add_chunks<2>(x, panel, chunks, sums[i]);
  }
}

static void multiply_piece(const QuantizedProduct& p, const Piece& piece) {
  const int64_t steps = (piece.rows + STEP - 1) / STEP;
  Sums sums[MOST_ROWS / STEP];
  memset(sums, 0, sizeof *sums * steps);
  const MatrixUnit unit;  // the tiles 0 and 1 are rows of x, 2 and 3 blocks of W, and 4 to 7 sums
  p.bits > 0 ? multiply_packed(p, piece, steps, sums) : multiply_plain(p, piece, steps, sums);
  for (int64_t r = 0; r < piece.rows; r++)
    for (int b = 0; b < piece.blocks; b++)
      finish(p, piece.row + r, piece.block + b, load(sums[r / STEP].of[r / 16 % 2][b][r % 16]));
}
