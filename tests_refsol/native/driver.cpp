// Runs every kernel on arrays of exactly the sizes that it may touch, for the address and undefined-behaviour sanitizers.
#include <cstdio>
#include <memory>
#include <vector>

#include "lines.h"

namespace attention {
#include "decode_attention.cpp"
}
namespace plain {
#include "product.cpp"
}
namespace quantized {
#include "quantized_product.cpp"
}
using attention::attend_decodes_float, plain::multiply_bf16, plain::multiply_float, quantized::multiply_quantized;

template <typename Number>
static std::vector<Number> some(int64_t count) {
  std::vector<Number> numbers(count);
  for (int64_t i = 0; i < count; i++) numbers[i] = Number((i * 37 + 11) % 61);
  return numbers;
}

static int run_product(int64_t rows, int64_t outputs, int64_t columns, bool biased) {
  const int64_t blocks = (outputs + 15) / 16;
  const auto bias = some<float>(outputs);
  const float* of_bias = biased ? bias.data() : nullptr;
  const auto x = some<float>(rows * columns), w = some<float>(blocks * columns * 16);
  std::vector<float> y(rows * outputs);
  const auto half_x = some<uint16_t>(rows * columns), half_w = some<uint16_t>(blocks * ((columns + 1) / 2) * 32);
  std::vector<uint16_t> half_y(rows * outputs);
  int failed = 0;
  for (int in_tiles : {0, 1})
    failed |= multiply_float(x.data(), w.data(), of_bias, y.data(), rows, outputs, columns, 2, in_tiles) |
              multiply_bf16(half_x.data(), half_w.data(), of_bias, half_y.data(), rows, outputs, columns, 2, in_tiles);
  return failed;
}

static int run_quantized(int64_t rows, int64_t outputs, int64_t groups, int group, int bits, bool is_bf16) {
  const int64_t blocks = (outputs + 15) / 16, columns = groups * group;
  const auto x = some<float>(rows * columns);
  const auto half_x = some<uint16_t>(rows * columns);
  const auto w = some<uint8_t>(blocks * columns * bits * 2), constants = some<uint8_t>(blocks * groups * 32 * (is_bf16 ? 2 : 4));
  std::vector<uint8_t> y(rows * outputs * (is_bf16 ? 2 : 4));
  const void* of_x = is_bf16 ? (const void*)half_x.data() : (const void*)x.data();
  return multiply_quantized(of_x, w.data(), constants.data(), nullptr, y.data(), rows, outputs, columns, group, bits,
                            is_bf16, is_bf16, 2);
}

static int run_attention(int64_t queries, int64_t kv_heads, int64_t size) {
  const int64_t rows = 3, slots = 40, heads = queries * kv_heads;
  const std::vector<int64_t> starts{0, 23, 39}, counts{17, 17, 1}, runs{0, 1, 2, 3};
  const auto query = some<float>(rows * heads * size), keys = some<float>(slots * kv_heads * size);
  std::vector<float> out(rows * heads * size);
  return attend_decodes_float(query.data(), keys.data(), keys.data(), out.data(), starts.data(), counts.data(), runs.data(),
                              rows, heads, kv_heads, size, 0.25f, 2);
}

int main() {
  int failed = 0;
  for (int64_t rows : {1, 2, 5, 13})
    for (int64_t outputs : {1, 16, 65, 130})
      for (int64_t columns : {1, 2, 33}) failed |= run_product(rows, outputs, columns, columns == 33);
  for (int64_t rows : {1, 3, 9})
    for (int64_t outputs : {1, 17, 48})
      for (int group : {32, 64, 128})
        for (int bits : {4, 8}) failed |= run_quantized(rows, outputs, 2, group, bits, rows == 3);
  for (int64_t queries : {1, 2, 7, 16})
    for (int64_t size : {16, 80, 256}) failed |= run_attention(queries, 2, size);
  printf("kernels ran: %d\n", failed);
  return failed;
}
