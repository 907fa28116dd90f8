// A line: 16 numbers, as many as one AVX-512 register holds, or two of AVX2, or four of any other processor.
// Kernels are written in lines; what a processor has instructions of its own for is chosen here, and in matrix_unit.h.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifdef __AVX512F__
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__AVX512BW__)
#define MATRIX_UNIT  // see unit.h
#endif
constexpr int LINE = 16;
constexpr int PARTS = LINE / WIDTH;

// Vectors of GCC and Clang: + and * work on all numbers at once, on every processor.
typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Shorts __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));

// 32 columns of a packed row of x, in one line of the cache: a matrix unit reads two where they lie across its end.
struct alignas(64) Columns {
  int16_t numbers[32];

  static int64_t count(int64_t numbers) { return (numbers + 31) / 32; }
};

// A vector at any address, of whatever type is there. Through memcpy, GCC would keep lines in memory.
template <typename Vector, typename Number>
static inline Vector vector_at(const Number* from) {
  typedef Vector Anywhere __attribute__((aligned(1), may_alias));
  return *reinterpret_cast<const Anywhere*>(from);
}

template <typename Vector, typename Number>
static inline void put_vector(Number* to, const Vector& vector) {
  typedef Vector Anywhere __attribute__((aligned(1), may_alias));
  *reinterpret_cast<Anywhere*>(to) = vector;
}

// Day 4.1: a blank task returns its number, and every function passes on the one that it meets.
static inline int blank(int task, int other) { return task > other ? task : other; }

struct Line {
  Floats part[PARTS];
};

struct IntLine {
  Ints part[PARTS];
};

// Without 0: to add it would be an instruction more, for -0.
static inline Line line_of(float number) {
  Line line;
  for (int i = 0; i < PARTS; i++) line.part[i] = number - Floats{};
  return line;
}

static inline IntLine no_ints() { return IntLine{}; }

static inline Line load(const float* from) {
  Line line;
  for (int i = 0; i < PARTS; i++) line.part[i] = vector_at<Floats>(from + i * WIDTH);
  return line;
}

// 16 bf16 numbers: the upper halves of floats.
static inline Line load(const uint16_t* from) {
  Line line;
  for (int i = 0; i < PARTS; i++)
    line.part[i] = (Floats)(__builtin_convertvector(vector_at<Halves>(from + i * WIDTH), Words) << 16);
  return line;
}

static inline float float_of(float number) { return number; }

static inline float float_of(uint16_t bf16) {
  uint32_t word = uint32_t(bf16) << 16;
  float number;
  memcpy(&number, &word, sizeof number);
  return number;
}

// The nearest bf16 of each number, of two equally near ones the even; NaN stays NaN.
static inline Halves bf16_of(const Floats& numbers) {
  const Words words = (Words)numbers, rounded = words + 0x7fff + (words >> 16 & 1);
  return __builtin_convertvector((numbers != numbers ? words | 0x400000 : rounded) >> 16, Halves);
}

// The first `count` numbers of a line.
static inline void store(float* to, const Line& line, int count) {
  if (count < LINE) return (void)memcpy(to, &line, sizeof(float) * count);
  for (int i = 0; i < PARTS; i++) put_vector(to + i * WIDTH, line.part[i]);
}

static inline void store(uint16_t* to, const Line& line, int count) {
  Halves halves[PARTS];
  for (int i = 0; i < PARTS; i++) halves[i] = bf16_of(line.part[i]);
  if (count < LINE) return (void)memcpy(to, halves, sizeof(uint16_t) * count);
  for (int i = 0; i < PARTS; i++) put_vector(to + i * WIDTH, halves[i]);
}

static inline Line multiply_add(const Line& a, const Line& b, Line sum) {
  for (int i = 0; i < PARTS; i++) sum.part[i] += a.part[i] * b.part[i];
  return sum;
}

static inline Line times(const Line& a, const Line& b) {
  Line out;
  for (int i = 0; i < PARTS; i++) out.part[i] = a.part[i] * b.part[i];
  return out;
}

static inline Line add(Line a, const Line& b) {
  for (int i = 0; i < PARTS; i++) a.part[i] += b.part[i];
  return a;
}

static inline IntLine add(IntLine a, const IntLine& b) {
  for (int i = 0; i < PARTS; i++) a.part[i] = (Ints)((Words)a.part[i] + (Words)b.part[i]);  // those of a NaN may overflow
  return a;
}

static inline Line magnitudes(Line line) {
  for (int i = 0; i < PARTS; i++) line.part[i] = (Floats)((Words)line.part[i] & 0x7fffffffu);
  return line;
}

static inline Line larger(Line a, const Line& b) {
  for (int i = 0; i < PARTS; i++) a.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return a;
}

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

// The largest of 16 numbers, halves compared with halves. In a loop over an array, each step would wait for memory.
template <typename Number, typename Line16>
static inline Number largest_number(const Line16& line) {
  typedef Number Half __attribute__((vector_size(32)));
  typedef Number Quarter __attribute__((vector_size(16)));
  Half half[2];
  memcpy(half, &line, sizeof half);
  const Half eight = half[0] > half[1] ? half[0] : half[1];
  Quarter quarter[2];
  memcpy(quarter, &eight, sizeof quarter);
  const Quarter four = quarter[0] > quarter[1] ? quarter[0] : quarter[1];
  const Number a = four[0] > four[1] ? four[0] : four[1], b = four[2] > four[3] ? four[2] : four[3];
  return a > b ? a : b;
}

static inline float largest_of(const Line& line) { return largest_number<float>(line); }

static inline int32_t largest_of(const IntLine& line) { return largest_number<int32_t>(line); }

// Eight numbers with the sum of a line, the first step to the sums of many lines.
static inline Eight folded(const Line& line) {
  Eight halves[2];
  memcpy(halves, &line, sizeof halves);
  return halves[0] + halves[1];
}

// Halves added to halves: in order, each addition would wait for the one before.
static inline float sum_of(const Line& line) {
  const Eight eight = folded(line);
  Four quarter[2];
  memcpy(quarter, &eight, sizeof quarter);
  const Four four = quarter[0] + quarter[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Some of the numbers of a and b, by their places: those of b begin at 8. GCC and Clang have a function each.
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t Places __attribute__((vector_size(32)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// Sums of neighbours: of a in the lower half of each four, and of b in the upper one.
static inline Eight neighbours(const Eight& a, const Eight& b) {
  return PICK(a, b, 0, 2, 8, 10, 4, 6, 12, 14) + PICK(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

// The sums of 16 lines that are folded. One by one, they would take longer than the products before them.
static inline Line sums_of(const Eight* lines) {
  Eight sums[2];
  for (int i = 0; i < 2; i++, lines += 8) {
    const Eight a = neighbours(neighbours(lines[0], lines[1]), neighbours(lines[2], lines[3]));
    const Eight b = neighbours(neighbours(lines[4], lines[5]), neighbours(lines[6], lines[7]));
    sums[i] = PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  Line line;
  memcpy(&line, sums, sizeof line);
  return line;
}

// The nearest integers of numbers whose magnitude is below 2^22. A float near 1.5 · 2^23 has no digits after the point.
static inline IntLine nearest_ints(const Line& line) {
  const float shift = 12582912.0f;
  IntLine ints;
  for (int i = 0; i < PARTS; i++) ints.part[i] = (Ints)(line.part[i] + shift) - (Ints)(Floats{} + shift);
  return ints;
}

// 2^x of numbers that are 0 or less; below -126 it is 0. The series of e^(f ln 2) up to f^6 is exact to a float's last bit.
static inline Line powers_of_two(const Line& line) {
  const float series[] = {1.540353e-4f, 1.333356e-3f, 9.618129e-3f, 5.550411e-2f, 2.402265e-1f, 6.931472e-1f, 1.0f};
  Line powers;
  for (int i = 0; i < PARTS; i++) {
    const Floats x = line.part[i] > -126.0f ? line.part[i] : Floats{} - 126.0f;
    const Floats shifted = x + 12582912.0f, rest = x - (shifted - 12582912.0f);
    Floats power = Floats{} + series[0];
    for (int k = 1; k < 7; k++) power = power * rest + series[k];
    const Ints exponent = ((Ints)shifted - (Ints)(Floats{} + 12582912.0f)) << 23;
    const Floats scaled = (Floats)((Ints)power + exponent);
    powers.part[i] = line.part[i] > -126.0f ? scaled : Floats{};
  }
  return powers;
}

static inline void store_ints(int8_t* to, const IntLine& line) {
  typedef int8_t Some __attribute__((vector_size(WIDTH)));
  for (int i = 0; i < PARTS; i++) {
    const Some bytes = __builtin_convertvector(line.part[i], Some);
    memcpy(to + i * WIDTH, &bytes, WIDTH);
  }
}

// In 16 bits, four columns are in the order 0, 2, 1, 3: the pairs that `dot_fours` multiplies.
static inline void store_ints(int16_t* to, const IntLine& line) {
  int32_t from[LINE];
  memcpy(from, &line, sizeof from);
  for (int i = 0; i < LINE; i++) to[i] = int16_t(from[i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i]);
}

static inline Line floats_of(const IntLine& ints) {
  Line line;
  for (int i = 0; i < PARTS; i++) line.part[i] = __builtin_convertvector(ints.part[i], Floats);
  return line;
}

// Writes the outputs of block b, with their bias if there is one; the last block may have fewer than 16.
template <typename Number>
static inline void store_outputs(Number* to, Line sum, const float* bias, int64_t b, int64_t outputs) {
  const int count = int(outputs - b * LINE < LINE ? outputs - b * LINE : LINE);
  if (bias != nullptr) {
    float some[LINE] = {};
    memcpy(some, bias + b * LINE, sizeof(float) * count);
    sum = add(sum, load(some));
  }
  store(to, sum, count);
}

// 64 bytes of a packed matrix: what 16 outputs multiply some columns by.
struct Bytes {
  Words part[PARTS];
};

static inline Bytes bytes_at(const void* from) {
  Bytes bytes;
  for (int i = 0; i < PARTS; i++) bytes.part[i] = vector_at<Words>((const char*)from + i * 4 * WIDTH);
  return bytes;
}

// Two 16-bit columns of a row of x as one word.
static inline uint32_t pair_at(const uint16_t* x) {
  uint32_t pair;
  memcpy(&pair, x, sizeof pair);
  return pair;
}

// sum += two bf16 columns of 16 outputs times the same two columns of a row.
static inline Line dot_pairs(const Bytes& w, uint32_t pair, Line sum) {
#ifdef __AVX512BF16__
  sum.part[0] = (Floats)_mm512_dpbf16_ps((__m512)sum.part[0], (__m512bh)w.part[0], (__m512bh)_mm512_set1_epi32(pair));
#else
  const float first = float_of(uint16_t(pair)), second = float_of(uint16_t(pair >> 16));
  for (int i = 0; i < PARTS; i++) {
    sum.part[i] += (Floats)(w.part[i] << 16) * first;
    sum.part[i] += (Floats)(w.part[i] & 0xffff0000u) * second;
  }
#endif
  return sum;
}

// The lower and the upper four bits of every byte.
static inline Bytes low_nibbles(Bytes bytes) {
  for (int i = 0; i < PARTS; i++) bytes.part[i] &= 0x0f0f0f0fu;
  return bytes;
}

static inline Bytes high_nibbles(Bytes bytes) {
  for (int i = 0; i < PARTS; i++) bytes.part[i] = bytes.part[i] >> 4 & 0x0f0f0f0fu;
  return bytes;
}

// sum += four columns of 16 outputs (unsigned bytes) times the same four columns of a row (signed bytes).
// SMALL says that the unsigned bytes are below 128: AVX2 adds products of two pairs in 16 bits.
template <bool SMALL>
static inline IntLine dot_fours(const Bytes& w, const int8_t* four, IntLine sum) {
  int32_t word;
  memcpy(&word, four, sizeof word);
#if defined(__AVX512VNNI__)
  sum.part[0] = (Ints)_mm512_dpbusd_epi32((__m512i)sum.part[0], (__m512i)w.part[0], _mm512_set1_epi32(word));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i signs = _mm256_set1_epi32(word), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < PARTS; i++) {
    const __m256i bytes = (__m256i)w.part[i];
    if constexpr (SMALL) {
      sum.part[i] += (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(bytes, signs), ones);
    } else {  // 255 · 127 · 2 does not fit into 16 bits: even and odd columns apart, each in 16 bits
      const __m256i even = _mm256_and_si256(bytes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(bytes, 8);
      const __m256i a = _mm256_srai_epi16(_mm256_slli_epi16(signs, 8), 8), b = _mm256_srai_epi16(signs, 8);
      sum.part[i] += (Ints)_mm256_madd_epi16(even, a) + (Ints)_mm256_madd_epi16(odd, b);
    }
  }
#else
  for (int i = 0; i < PARTS; i++)
    for (int k = 0; k < 4; k++) sum.part[i] += (Ints)(w.part[i] >> (8 * k) & 255) * int32_t(four[k]);
#endif
  return sum;
}

// sum += the products of two pairs of 16-bit numbers, of which those of `pairs` are below 2^15.
static inline Ints add_pairs(const Words& pairs, uint32_t pair, Ints sum) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)pairs, _mm512_set1_epi32(pair));
#elif defined(__AVX2__) && defined(__AVXVNNI__) && !defined(__AVX512F__)
  return (Ints)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)pairs, _mm256_set1_epi32(pair));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi32(pair));
#else
  return sum + (Ints)(pairs & 0xffff) * int16_t(pair) + (Ints)(pairs >> 16) * int16_t(pair >> 16);
#endif
}

// The same for a row in 16 bits, see `store_ints`: the even bytes of each word are a pair, and the odd ones too.
template <bool SMALL>
static inline IntLine dot_fours(const Bytes& w, const int16_t* four, IntLine sum) {
  const uint32_t even = pair_at((const uint16_t*)four), odd = pair_at((const uint16_t*)four + 2);
  for (int i = 0; i < PARTS; i++) {
    sum.part[i] = add_pairs(w.part[i] & 0x00ff00ffu, even, sum.part[i]);
    sum.part[i] = add_pairs((Words)((Shorts)w.part[i] >> 8), odd, sum.part[i]);
  }
  return sum;
}

// A float16 number as it is in memory; bf16 is uint16_t.
struct Float16 {
  uint16_t bits;
};

// Constants of a quantised matrix. GCC 12 makes six instructions of the `load` of bf16 numbers, here two.
static inline Line constants_at(const float* from) { return load(from); }

static inline Line constants_at(const uint16_t* from) {
#ifdef __AVX512F__
  Line line;
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
  line.part[0] = (Floats)_mm512_slli_epi32(words, 16);
  return line;
#else
  return load(from);
#endif
}

static inline Line constants_at(const Float16* from) {
  Line line;
#ifdef __AVX512F__
  line.part[0] = (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && defined(__F16C__)
  for (int i = 0; i < PARTS; i++)
    line.part[i] = (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i * WIDTH)));
#else
  for (int i = 0; i < PARTS; i++) {
    const Words half = __builtin_convertvector(vector_at<Halves>(from + i * WIDTH), Words), size = half & 0x7fff;
    const Words shift = Words{} + (112 << 23);  // exponents: a float's 1.0 has 127, and a float16's 15
    const Words large = (size << 13) + shift + (size < 0x7c00 ? Words{} : shift);  // infinity and NaN have the largest
    const Floats small = __builtin_convertvector((Ints)size, Floats) * 0x1p-24f;   // subnormal: no leading 1
    line.part[i] = (Floats)((size < 0x400 ? (Words)small : large) | (half & 0x8000) << 16);
  }
#endif
  return line;
}
