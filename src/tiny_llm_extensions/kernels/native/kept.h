// How pages keep keys and values: as numbers of the queries' type, or in eight bits.
#pragma once
#include <type_traits>

#include "lines.h"

enum { AS_QUERIES, INT8, E4M3 };

// A number with 4 bits of exponent and 3 of fraction, as it is in memory.
struct Float8 {
  uint8_t bits;
};

// GCC 12 converts bytes one by one, which takes many times as long as an instruction for all of them.
static inline Ints ints_of(const int8_t* from) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  typedef int8_t Some __attribute__((vector_size(WIDTH)));
  return __builtin_convertvector(vector_at<Some>(from), Ints);
#endif
}

static inline Line load(const int8_t* from) {
  IntLine ints;
  for (int i = 0; i < PARTS; i++) ints.part[i] = ints_of(from + i * WIDTH);
  return floats_of(ints);
}

static inline Line load(const Float8* from) {
  Line line;
#if defined(__AVX2__) && defined(__F16C__)
  // A float16 has one more bit of exponent: moved there, each number is 256 times too small.
  const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)), 7);
  const __m256i halves = _mm256_and_si256(moved, _mm256_set1_epi16(int16_t(0xbfff)));
  return times(constants_at((const Float16*)&halves), line_of(256));
#else
  for (int i = 0; i < PARTS; i++) {
    const Words bits = (Words)ints_of((const int8_t*)from + i * WIDTH), size = bits & 0x7f;
    const Words normal = (size << 20) + (120 << 23);  // exponents: a float's 1.0 has 127, and an e4m3's 7
    const Floats small = __builtin_convertvector((Ints)size, Floats) * 0x1p-9f;  // subnormal: no leading 1
    line.part[i] = (Floats)((size < 8 ? (Words)small : normal) | (bits & 0x80000000u));
  }
#endif
  return line;
}

// KEPT is given to the compiler: a kernel that reads pages is a library of its own for each way to keep them.
#ifndef KEPT
#define KEPT AS_QUERIES
#endif
template <typename Number>
using Kept = std::conditional_t<KEPT == INT8, int8_t, std::conditional_t<KEPT == E4M3, Float8, Number>>;

// Keys or values: a row for each slot and head. Rows in int8 have a scale each, in bf16.
template <typename Number>
struct Rows {
  Kept<Number>* numbers;
  uint16_t* scales;
  int64_t size;

  Kept<Number>* at(int64_t row) const { return numbers + row * size; }
  float scale(int64_t row) const { return KEPT == INT8 ? float_of(scales[row]) : 1; }
};

// A row as numbers of the queries' type: where it is, or in `room`.
template <typename Number>
static const Number* numbers_of(const Rows<Number>& rows, int64_t row, Number* room) {
  if constexpr (KEPT == AS_QUERIES) {
    return rows.at(row);
  } else {
    const Line scale = line_of(rows.scale(row));
    for (int64_t i = 0; i < rows.size; i += LINE) store(room + i, times(load(rows.at(row) + i), scale), LINE);
    return room;
  }
}

static inline Line divided(Line line, float by) {
  for (int i = 0; i < PARTS; i++) line.part[i] /= by;
  return line;
}

// The largest number becomes 127 scales. Codes are made for the rounded scale.
template <typename Number>
static void keep_int8(const Number* x, int8_t* to, uint16_t* scale, int64_t size) {
  Line largest = line_of(0);
  for (int64_t i = 0; i < size; i += LINE) largest = larger(magnitudes(load(x + i)), largest);
  *scale = bf16_of(Floats{} + largest_of(largest) / 127)[0];
  const float by = float_of(*scale) > 0 ? float_of(*scale) : 1;  // of zeros alone the scale is 0
  for (int64_t i = 0; i < size; i += LINE) store_ints(to + i, nearest_ints(divided(load(x + i), by)));
}

// The nearest number, of two equally near ones the even, and 448 of what is larger.
template <typename Number>
static void keep_e4m3(const Number* x, Float8* to, int64_t size) {
  for (int64_t i = 0; i < size; i += LINE) {
    const Line line = load(x + i);
    IntLine codes = nearest_ints(times(magnitudes(line), line_of(512)));  // right where the number is subnormal
    for (int p = 0; p < PARTS; p++) {
      Floats part = (Floats)((Words)line.part[p] & 0x7fffffffu);
      part = part > 448.0f ? Floats{} + 448.0f : part;
      const Words words = (Words)part, normal = ((words + 0x7ffff + (words >> 20 & 1)) >> 20) - (120 << 3);
      const Words sign = (Words)line.part[p] >> 24 & 0x80;
      codes.part[p] = (Ints)((part < 0x1p-6f ? (Words)codes.part[p] : normal) | sign);
    }
    store_ints((int8_t*)to + i, codes);
  }
}

// Writes a row of numbers of the queries' type.
template <typename Number>
static void keep(const Rows<Number>& rows, int64_t row, const Number* x) {
  if constexpr (KEPT == INT8)
    keep_int8(x, rows.at(row), rows.scales + row, rows.size);
  else if constexpr (KEPT == E4M3)
    keep_e4m3(x, rows.at(row), rows.size);
  else
    memcpy(rows.at(row), x, sizeof(Number) * rows.size);
}
