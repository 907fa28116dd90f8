// Products of many rows by a matrix unit, see `unit.h`. W is of bf16 numbers, whose lines are the unit's tiles already, or of
// 4 or 8 bits. Sums stay in the unit until all columns are added, so the scales of groups must be in W already: a number of W
// is two bf16 numbers. x is one if it is bf16, and two if it is float32. So nothing is rounded to fewer than 16 bits, and x,
// unlike in `quantized_tiles.h`, not at all if it is bf16.
#pragma once
#include "unit.h"

using quantized::QuantizedProduct;

constexpr int BLOCKS = WIDE / LINE;  // of outputs, that are multiplied together
constexpr int MOST_ROWS = 512;       // for which W is unpacked once
constexpr int MOST_CHUNKS = 32;      // of which W is unpacked at a time: they stay in the processor's second cache

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

// Packs the columns of a row from `from` to `to`. A packed x is (rows / STEP, chunks, planes, STEP, CHUNK).
template <typename Number>
static void round_groups(const QuantizedProduct& p, const Number* x, int64_t row, int64_t from, int64_t to) {
  const int planes = planes_of(p);
  uint16_t* packed = (uint16_t*)p.rounded + (row / STEP * p.columns + from) * STEP * planes + row % STEP * CHUNK;
  for (x += row * p.columns; from < to; from += CHUNK, packed += planes * 2 * TILE)
    for (int i = 0; i < CHUNK; i += LINE) split(x + from + i, packed + i, packed + 2 * TILE + i);
}

// Some chunks of two blocks of W, of which each word has two columns of an output: the nearest bf16 numbers, and those of what is left.
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
    _mm512_store_si512(upper[i], upper_halves(rounded(columns[2 * i]), rounded(columns[2 * i + 1])));
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

// Sums of 32 rows by two blocks.
struct Sums {
  alignas(64) float of[2][BLOCKS][16][LINE];
};

// `add(i)` for each chunk.
template <typename Add>
static inline void add_chunks(int64_t chunks, Sums& sums, Add add) {
  const SumsAt at{sums.of[0][0][0], 16 * LINE, BLOCKS * 16 * LINE, LINE};
  at.load();
  for (int64_t i = 0; i < chunks; i++) add(i);
  at.store();
}

template <int PLANES>
static void add_chunks(const uint16_t* x, const Panel& w, int64_t chunks, Sums& sums, bool is_one) {
  add_chunks(chunks, sums, [&](int64_t i) {
    for_pairs<PLANES, 2>([&](int of_x, int of_w) {
      add_tiles(x + (i * PLANES + of_x) * 2 * TILE, w.words[i][0][of_w], w.words[i][1][of_w], is_one);
    });
  });
}

// What one thread computes: a tile by up to BLOCKS blocks. A product has `pieces_of` of them.
struct Piece {
  int64_t row, rows, block, blocks;

  // Whether a step has rows of one tile alone.
  bool is_one(int64_t step) const { return rows - step * STEP <= STEP / 2; }
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
    add_chunks(chunks, sums[i], [&](int64_t k) { add_tiles(x + 2 * k * TILE, w + k * TILE, second + k * TILE, piece.is_one(i)); });
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
      planes == 1 ? add_chunks<1>(x, panel, chunks, sums[i], piece.is_one(i))
                  : add_chunks<2>(x, panel, chunks, sums[i], piece.is_one(i));
  }
}

static void multiply_piece(const QuantizedProduct& p, const Piece& piece) {
  const int64_t steps = (piece.rows + STEP - 1) / STEP;
  Sums sums[MOST_ROWS / STEP];
  memset(sums, 0, sizeof *sums * steps);
  const MatrixUnit unit;
  p.bits > 0 ? multiply_packed(p, piece, steps, sums) : multiply_plain(p, piece, steps, sums);
  for (int64_t r = 0; r < piece.rows; r++)
    for (int b = 0; b < piece.blocks; b++)
      finish(p, piece.row + r, piece.block + b, load(sums[r / STEP].of[r / 16 % 2][b][r % 16]));
}
