// Products of many rows with a 4- or 8-bit matrix, where x is rounded to 16 bits. The results are those of the solution's
// `quantized_product.cpp`, to the last bit. That kernel unpacks a line of W again for every few rows; here a group of
// columns is unpacked once for a tile of rows, and the rows of a tile are packed in the order in which they are read. What
// one group reads and writes fits into the processor's first cache.
//
// Include it after the solution's kernel, which must be in the namespace `quantized`, and in a namespace of its own.
#pragma once
#include "lines.h"

constexpr int CHUNK = 32;                    // columns of x that are packed together: a group has 1, 2 or 4 chunks
constexpr int STEP = WIDTH == 16 ? 4 : 2;    // a tile is filled up to a multiple of this number of rows
constexpr int ROWS = 3 * STEP;               // rows whose sums stay in registers, with BLOCKS blocks
constexpr int BLOCKS = WIDTH == 16 ? 2 : 1;  // blocks of 16 outputs that are multiplied together
constexpr int MOST_ROWS = 8 * 12;            // rows of a tile: a multiple of ROWS
constexpr int MOST_PAIRS = quantized::MOST_COLUMNS / 2;  // pairs of columns of a group

using quantized::QuantizedProduct;

// The rows of a product in tiles of the same size; the last tile may be smaller.
struct Tiles {
  int64_t rows;

  int64_t count() const { return (rows + MOST_ROWS - 1) / MOST_ROWS; }
  int64_t size() const { return ((rows + count() - 1) / count() + ROWS - 1) / ROWS * ROWS; }
  // The rows of the tile that begins at row `first`, without and with those that fill it up.
  int64_t rows_at(int64_t first) const { return rows - first < size() ? rows - first : size(); }
  int64_t padded_at(int64_t first) const { return (rows_at(first) + STEP - 1) / STEP * STEP; }
  // The size of an array with `columns` numbers for each row of all tiles.
  int64_t numbers(int64_t columns) const { return (rows + STEP) * columns; }
  int64_t packed(int64_t columns) const { return numbers(columns); }  // the same for x in 16 bits
};

static inline bool takes_plain(bool, int64_t) { return false; }

// Rounds the columns of a row from `from` to `to`, whole groups, and packs them. A packed tile is (chunks, rows, CHUNK);
// its scales and sums are (groups, rows) each.
template <typename Number>
static void round_groups(const QuantizedProduct& p, const Number* x, int64_t row, int64_t from, int64_t to) {
  const Tiles tiles{p.rows};
  const int64_t within = row % tiles.size(), first = row - within, padded = tiles.padded_at(first);
  int16_t* rounded = (int16_t*)p.rounded + first * p.columns + from * padded + within * CHUNK;
  int64_t at = first * p.groups() + from / p.group * padded + within;
  for (const Number* group = x + row * p.columns + from; from < to; from += p.group, group += p.group, at += padded) {
    int16_t some[quantized::MOST_COLUMNS];
    quantized::round_group(group, p.group, some, p.scales + at, p.sums + at);
    for (int i = 0; i < p.group; i += CHUNK, rounded += padded * CHUNK) memcpy(rounded, some + i, CHUNK * sizeof(int16_t));
  }
}

// An unpacked group of columns of some blocks: each word has two columns of an output, in 16 bits.
struct Group {
  alignas(64) uint32_t words[MOST_PAIRS][BLOCKS][LINE];
  Line scale[BLOCKS], bias[BLOCKS];
};

// Four columns as two pairs, in the order of `store_ints`: the even bytes of each word, and the odd ones.
static inline void unpack_four(const Bytes& four, int pair, int place, Group& to) {
  for (int i = 0; i < PARTS; i++) {
    put_vector(to.words[pair][place] + i * WIDTH, four.part[i] & 0x00ff00ffu);
    put_vector(to.words[pair + 1][place] + i * WIDTH, four.part[i] >> 8 & 0x00ff00ffu);
  }
}

// Group `at` of the matrix, of which those of a block follow each other.
template <int BITS, typename Constant>
static void unpack(const QuantizedProduct& p, int64_t at, int place, Group& to) {
  const int64_t bytes = int64_t(p.group) * LINE * BITS / 8;
  const uint8_t* w = p.w + at * bytes;
  quantized::prefetch(w + bytes, bytes);  // the next group is read after all rows of the tile are computed
  for (int k = 0; k < p.group; k += 8) {
    const Bytes line = bytes_at(w + k * LINE * BITS / 8);
    unpack_four(BITS == 4 ? low_nibbles(line) : line, k / 2, place, to);
    unpack_four(BITS == 4 ? high_nibbles(line) : bytes_at(w + (k + 4) * LINE), k / 2 + 2, place, to);
  }
  const Constant* constants = (const Constant*)p.constants + at * 2 * LINE;
  quantized::prefetch(constants + 2 * LINE, 2 * LINE * sizeof(Constant));
  to.scale[place] = constants_at(constants);
  to.bias[place] = constants_at(constants + LINE);
}

template <int BITS>
static void unpack(const QuantizedProduct& p, int64_t at, int place, Group& to) {
  if (p.type_of_constants == quantized::OF_FLOAT16) return unpack<BITS, Float16>(p, at, place, to);
  if (p.type_of_constants == quantized::OF_BF16) return unpack<BITS, uint16_t>(p, at, place, to);
  unpack<BITS, float>(p, at, place, to);
}

// dots += one chunk of R rows, which are CHUNK numbers apart, by B blocks.
template <int R, int B>
static inline void add_chunk(const int16_t* x, const uint32_t (*words)[BLOCKS][LINE], IntLine (&dots)[R][B]) {
#pragma GCC unroll 2
  for (int k = 0; k < CHUNK / 2; k++) {
    Bytes lines[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) lines[b] = bytes_at(words[k][b]);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const uint32_t pair = pair_at((const uint16_t*)x + r * CHUNK + 2 * k);
#pragma GCC unroll 2
      for (int b = 0; b < B; b++)
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++) dots[r][b].part[i] = add_pairs(lines[b].part[i], pair, dots[r][b].part[i]);
    }
  }
}

// A group of R rows of a tile of `padded` rows, by B blocks.
template <int R, int B>
static inline void add_rows(const int16_t* x, const float* scales, const float* x_sums, int64_t padded, int chunks,
                            const Group& w, float (*sums)[B * LINE]) {
  IntLine dots[R][B] = {};
  for (int i = 0; i < chunks; i++) add_chunk<R, B>(x + i * padded * CHUNK, w.words + i * CHUNK / 2, dots);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) {
      Line sum = load(sums[r] + b * LINE);
      sum = multiply_add(times(w.scale[b], floats_of(dots[r][b])), line_of(scales[r]), sum);
      store(sums[r] + b * LINE, multiply_add(w.bias[b], line_of(x_sums[r]), sum), LINE);
    }
}

// The tile that begins at row `first`, by the B blocks from `block` on.
template <int B>
static void multiply_tile(const QuantizedProduct& p, int64_t first, int64_t block) {
  const Tiles tiles{p.rows};
  const int64_t there = tiles.rows_at(first), padded = tiles.padded_at(first), groups = p.groups();
  const int chunks = p.group / CHUNK;
  const int16_t* x = (const int16_t*)p.rounded + first * p.columns;
  const float *scales = p.scales + first * groups, *x_sums = p.sums + first * groups;
  alignas(64) float sums[MOST_ROWS][B * LINE];
  memset(sums, 0, sizeof sums[0] * padded);
  Group w;
  for (int64_t g = 0; g < groups; g++, x += padded * p.group, scales += padded, x_sums += padded) {
    for (int b = 0; b < B; b++) {
      const int64_t at = (block + b) * groups + g;
      p.bits == 4 ? unpack<4>(p, at, b, w) : unpack<8>(p, at, b, w);
    }
    const auto add = [&](auto rows, int64_t r) {
      add_rows<rows(), B>(x + r * CHUNK, scales + r, x_sums + r, padded, chunks, w, sums + r);
      // Written as soon as they are complete: the next rows are computed while memory takes these.
      for (int64_t i = r; g + 1 == groups && i < r + rows() && i < there; i++)
        for (int b = 0; b < B; b++) finish(p, first + i, block + b, load(sums[i] + b * LINE));
    };
    int64_t r = 0;
    for (; r + ROWS <= padded; r += ROWS) add(std::integral_constant<int, ROWS>(), r);
    if (padded - r == 2 * STEP) add(std::integral_constant<int, 2 * STEP>(), r);
    if (padded - r == STEP) add(std::integral_constant<int, STEP>(), r);
  }
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

static void multiply_piece(const QuantizedProduct& p, const Piece& piece) {
  if (piece.blocks == BLOCKS) return multiply_tile<BLOCKS>(p, piece.row, piece.block);
  multiply_tile<1>(p, piece.row, piece.block);
}
