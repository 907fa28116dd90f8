// Runs every kernel on arrays of exactly the sizes that it may touch, for the address and undefined-behaviour
// sanitizers, and compares it with plain loops, for processors on which Python does not run here.
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#ifdef __linux__
#include <unistd.h>
#endif

#include "kept.h"
#include "plain_loops.h"
#include "unit.h"

namespace attention {
#include "decode_attention.cpp"
}
namespace prompt {
#include "prompt_attention.cpp"
}
#ifndef PAGES_ALONE  // the others do not read pages
namespace between {
#include "between_products.cpp"
}
namespace plain {
#include "product.cpp"
}
#include "quantized_tiles.cpp"
using plain::multiply_bf16, plain::multiply_float, quantized::multiply_quantized;
#endif
using attention::attend_decodes;

// Keys or values as pages keep them, and the numbers that are read.
template <typename Number>
struct Pages {
  std::vector<Kept<Number>> codes;
  std::vector<uint16_t> scales;
  std::vector<Number> numbers;

  Pages(const std::vector<Number>& x, int64_t size) : codes(x.size()), scales(KEPT == INT8 ? x.size() / size : 0), numbers(x.size()) {
    const Rows<Number> rows{codes.data(), scales.data(), size};
    for (int64_t row = 0; row < int64_t(x.size()) / size; row++) {
      keep(rows, row, x.data() + row * size);
      memcpy(numbers.data() + row * size, numbers_of(rows, row, numbers.data() + row * size), sizeof(Number) * size);
    }
  }
};

#ifndef PAGES_ALONE
template <typename Number>
static int run_product(int64_t rows, int64_t outputs, int64_t columns, bool biased) {
  constexpr int64_t C = 4 / sizeof(Number);
  const auto bias = some<float>(outputs);
  const float* of_bias = biased ? bias.data() : nullptr;
  const auto x = some<Number>(rows * columns);
  const auto w = some<Number>((outputs + 15) / 16 * ((columns + C - 1) / C) * 16 * C);
  int failed = 0;
  for (int in_tiles : {0, 1}) {
    std::vector<Number> y(rows * outputs);
    if constexpr (sizeof(Number) == 2)
      failed |= multiply_bf16(x.data(), w.data(), of_bias, y.data(), rows, outputs, columns, 2, in_tiles);
    else
      failed |= multiply_float(x.data(), w.data(), of_bias, y.data(), rows, outputs, columns, 2, in_tiles);
    failed |= check_product(x, w, of_bias, y, rows, outputs, columns);
  }
  return failed;
}

template <typename Number, typename Constant>
static int run_quantized(const std::vector<Constant>& constants, int type, int64_t rows, int64_t outputs,
                         int64_t groups, int group, int bits) {
  const int64_t blocks = (outputs + 15) / 16, columns = groups * group;
  const auto x = some<Number>(rows * columns);
  const auto w = some<uint8_t>(blocks * columns * bits * 2);
  int failed = 0;
  for (int x_bits : {8, 16}) {
    std::vector<Number> y(rows * outputs);
    failed |= multiply_quantized(x.data(), w.data(), constants.data(), nullptr, y.data(), rows, outputs, columns, group,
                                 bits, sizeof(Number) == 2, type, x_bits, 2);
    failed |= check_quantized(x, w, constants, y, rows, outputs, groups, group, bits, x_bits);
  }
  std::vector<Number> y(rows * outputs);
  failed |= multiply_many(x.data(), w.data(), constants.data(), nullptr, y.data(), rows, outputs, columns, group, bits,
                          sizeof(Number) == 2, type, 16, 2);
  failed |= check_quantized(x, w, constants, y, rows, outputs, groups, group, bits, 16);
  return failed;
}

template <typename Number>
static int run_quantized(int64_t rows, int64_t outputs, int group, int bits) {
  const int64_t groups = 2, count = (outputs + 15) / 16 * groups * 32;
  const int type = sizeof(Number) == 2 ? quantized::OF_BF16 : quantized::OF_FLOAT32;
  return run_quantized<Number>(some<Number>(count), type, rows, outputs, groups, group, bits) |
         run_quantized<Number>(some_halves(count), quantized::OF_FLOAT16, rows, outputs, groups, group, bits);
}
#endif

template <typename Number>
static int run_attention(int64_t queries, int64_t kv_heads, int64_t size) {
  const int64_t rows = 3, slots = 40, heads = queries * kv_heads;
  const std::vector<int64_t> starts{0, 23, 39}, counts{17, 17, 1}, runs{0, 1, 2, 3};
  const auto query = some<Number>(rows * heads * size);
  const Pages<Number> keys(some<Number>(slots * kv_heads * size), size);
  std::vector<Number> out(rows * heads * size);
  const int task = attend_decodes(query.data(), keys.codes.data(), keys.scales.data(), keys.codes.data(), keys.scales.data(),
                                  out.data(), starts.data(), counts.data(), runs.data(), rows, heads, kv_heads, size, 0.25f,
                                  sizeof(Number) == 2, 2);
  return task | check_attention(query, keys.numbers, out, starts, counts, queries, kv_heads, size, 0.25);
}

static int run_chunk(int64_t rows, int64_t past, int64_t size, int64_t window) {
  const int64_t tokens = past + rows, padded = (tokens + 31) / 32 * 32;
  std::vector<int64_t> slots(tokens);
  for (int64_t i = 0; i < tokens; i++) slots[i] = tokens - 1 - i;
  const auto query = some<float>(rows * 4 * size);
  const Pages<float> keys(some<float>(tokens * 2 * size), size);
  std::vector<float> out(rows * 4 * size), packed(2 * 2 * padded * size);
  return prompt::attend_chunk(query.data(), keys.codes.data(), keys.scales.data(), keys.codes.data(), keys.scales.data(),
                              slots.data(), out.data(), packed.data(), packed.data() + 2 * padded * size, rows, tokens, 4, 2,
                              size, window, 0.25f, false, 2);
}

#ifndef PAGES_ALONE
static int run_between(int64_t size, int64_t half) {
  const auto x = some<uint16_t>(2 * size), weight = some<uint16_t>(size), head = some<uint16_t>(2 * half);
  std::vector<uint16_t> y(size), turned(2 * half);
  const auto angles = some<float>(half);
  between::scale_numbers(x.data(), weight.data(), between::inverse_root(x.data(), size, 0.1f), y.data(), size);
  between::gate_numbers(x.data(), x.data() + size, y.data(), size);
  for (const uint16_t* norm : {head.data(), (const uint16_t*)nullptr})
    between::turn_head(head.data(), norm, 0.1f, angles.data(), angles.data(), turned.data(), 2 * half);
  float gates[] = {-1e4f, 1e4f}, ups[] = {1, 1}, large[2];
  between::gate_numbers(gates, ups, large, 2);
  return large[0] != 0 || large[1] != 1e4f;
}
#endif

template <typename Number>
static int run_all() {
  int failed = 0;
  for (int64_t queries : {1, 2, 7, 16})
    for (int64_t size : {16, 80, 256}) failed |= run_attention<Number>(queries, 2, size);
#ifndef PAGES_ALONE
  for (int64_t rows : {1, 2, 5, 13})
    for (int64_t outputs : {1, 16, 65, 130})
      for (int64_t columns : {1, 2, 33}) failed |= run_product<Number>(rows, outputs, columns, columns == 33);
  for (int64_t rows : {1, 3, 9, 35})
    for (int64_t outputs : {1, 17, 48})
      for (int group : {32, 64, 128})
        for (int bits : {4, 8}) failed |= run_quantized<Number>(rows, outputs, group, bits);
#endif
  return failed;
}

static int run_rest() {
  int failed = 0;
  for (int64_t past : {0, 5, 300})
    for (int64_t size : {16, 80, 256}) failed |= run_chunk(7, past, size, past == 300 ? 9 : 0);
#ifndef PAGES_ALONE
  for (int64_t rows : {1, 3})
    for (int64_t size : {1, 16, 37}) failed |= run_between(size, rows * 16);
#endif
  return failed;
}

int main() {
#ifdef MATRIX_UNIT
  if (syscall(158, 0x1023, 18) != 0) return printf("no leave to use the matrix unit\n");  // as `flags_here` asks
#endif
  const int failed = run_all<uint16_t>() | run_all<float>() | run_rest();
  printf("kernels ran: %d\n", failed);
  return failed;
}
