// The matrix unit of a processor with AMX: eight tiles of 16 rows of 64 bytes. It multiplies bf16 numbers, 16 rows of 32 by
// 16 outputs in 16 cycles, so a float32 number is two of them: the nearest one, and the one nearest to what is left.
#pragma once
#include "lines.h"

#ifdef MATRIX_UNIT
constexpr int CHUNK = 32;         // columns of a tile
constexpr int TILE = 16 * CHUNK;  // numbers
constexpr int STEP = 32;          // rows that are multiplied together: two tiles
constexpr int WIDE = 32;          // outputs that are: two more

// The unit, while a thread has it: the tiles 0 and 1 are rows of x, 2 and 3 outputs of W, and 4 to 7 sums.
struct MatrixUnit {
  MatrixUnit() {
    // Static: GCC believes that the instruction reads 8 bytes, and leaves out what a variable of the stack has beside them.
    static const struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } sizes;
    _tile_loadconfig(&sizes);
  }
  ~MatrixUnit() { _tile_release(); }
};

// The upper halves of two lines of floats as pairs of bf16 numbers.
static inline __m512i upper_halves(const Floats& even, const Floats& odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32((__m512i)even, 16), (__m512i)odd);
}

// Numbers whose upper halves are the nearest bf16 numbers.
static inline Floats rounded(const Floats& numbers) { return (Floats)((Words)numbers + 0x8000u); }

// The same of what those bf16 numbers leave.
static inline Floats rest_of(const Floats& numbers) {
  return rounded(numbers - (Floats)((Words)rounded(numbers) & 0xffff0000u));
}

// 16 numbers as bf16 numbers: bf16 ones as they are, and of floats the nearest ones, and at `rest` those of what is left.
static inline void split(const uint16_t* x, uint16_t* upper, uint16_t* rest) { memcpy(upper, x, LINE * sizeof *x); }

static inline void split(const float* x, uint16_t* upper, uint16_t* rest) {
  const Floats numbers = vector_at<Floats>(x);
  const auto halves = [](const Floats& of) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)of, 16)); };
  _mm256_storeu_si256((__m256i*)upper, halves(rounded(numbers)));
  _mm256_storeu_si256((__m256i*)rest, halves(rest_of(numbers)));
}

// `add(of_x, of_w)` for those pairs of the bf16 numbers of x and W that are not too small to matter, small ones first.
template <int OF_X, int OF_W, typename Add>
static inline void for_pairs(Add add) {
  if (OF_W == 2) add(0, 1);
  if (OF_X == 2) add(1, 0);
  add(0, 0);
}

// The sums += 32 rows of x, two tiles one after the other, by two tiles of W. The last rows may be one tile.
static inline void add_tiles(const uint16_t* x, const void* first, const void* second, bool is_one = false) {
  _tile_loadd(0, x, 64);
  _tile_loadd(2, first, 64);
  _tile_loadd(3, second, 64);
  _tile_dpbf16ps(4, 0, 2);
  _tile_dpbf16ps(5, 0, 3);
  if (is_one) return;
  _tile_loadd(1, x + TILE, 64);
  _tile_dpbf16ps(6, 1, 2);
  _tile_dpbf16ps(7, 1, 3);
}

// Where the four tiles of 32 rows by 32 sums lie in memory. `right` and `below` count numbers.
struct SumsAt {
  float* sums;
  int64_t right, below, stride;

  void zero() const {
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
  }

  void load() const {
    _tile_loadd(4, sums, stride * 4);
    _tile_loadd(5, sums + right, stride * 4);
    _tile_loadd(6, sums + below, stride * 4);
    _tile_loadd(7, sums + below + right, stride * 4);
  }

  void store() const {
    _tile_stored(4, sums, stride * 4);
    _tile_stored(5, sums + right, stride * 4);
    _tile_stored(6, sums + below, stride * 4);
    _tile_stored(7, sums + below + right, stride * 4);
  }
};
#endif
