// What the kernels compute, in plain loops over the same packed arrays, and how far a kernel may be from it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "lines.h"

static float float_of(Float16 number) {
  const int exponent = number.bits >> 10 & 31, digits = number.bits & 1023;
  const double size = exponent ? std::ldexp(1024 + digits, exponent - 25) : std::ldexp(digits, -24);
  return float(number.bits >> 15 ? -size : size);
}

// Constants in float16, subnormal ones among them.
static std::vector<Float16> some_halves(int64_t count) {
  std::vector<Float16> numbers(count);
  for (int64_t i = 0; i < count; i++) numbers[i].bits = uint16_t(i * 2477 + 11) & 0xbbff;
  return numbers;
}

// Numbers that bf16 has exactly; of bytes all.
template <typename Number>
static std::vector<Number> some(int64_t count) {
  std::vector<Number> numbers(count);
  for (int64_t i = 0; i < count; i++) {
    const float number = float((i * 37 + 11) % 61 - 30) / 16;
    if constexpr (sizeof(Number) == 1) numbers[i] = Number(i * 37 + 11);
    if constexpr (sizeof(Number) == 2) numbers[i] = bf16_of(Floats{} + number)[0];
    if constexpr (sizeof(Number) == 4) numbers[i] = number;
  }
  return numbers;
}

// 0 if a number is near the expected one, else 1. `size` is that of the terms whose sum it is.
template <typename Number>
static int differs(const char* kernel, Number found, double expected, double size) {
  const double error = std::abs(float_of(found) - expected), rounding = sizeof(Number) == 2 ? 0.005 : 1e-5;
  if (error <= rounding * size) return 0;
  printf("%s: %g instead of %g\n", kernel, float_of(found), expected);
  return 1;
}

template <typename Number>
static int check_product(const std::vector<Number>& x, const std::vector<Number>& w, const float* bias,
                         const std::vector<Number>& y, int64_t rows, int64_t outputs, int64_t columns) {
  constexpr int64_t C = 4 / sizeof(Number);
  const int64_t lines = (columns + C - 1) / C;
  int wrong = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t o = 0; o < outputs; o++) {
      double sum = bias ? bias[o] : 0, size = std::abs(sum) + 1;
      for (int64_t i = 0; i < columns; i++) {
        const double term = double(float_of(x[row * columns + i])) *
                            float_of(w[((o / 16 * lines + i / C) * 16 + o % 16) * C + i % C]);
        sum += term;
        size += std::abs(term);
      }
      wrong |= differs("product", y[row * outputs + o], sum, size);
    }
  return wrong;
}

// A group of a row in bytes, as the kernel rounds it.
template <typename Number>
static std::vector<double> rounded(const Number* x, int group) {
  double largest = 0;
  for (int i = 0; i < group; i++) largest = std::max(largest, double(std::abs(float_of(x[i]))));
  std::vector<double> numbers(group);
  for (int i = 0; i < group && largest > 0; i++)
    numbers[i] = std::nearbyint(float_of(x[i]) * 127 / largest) * largest / 127;
  return numbers;
}

template <typename Number, typename Constant>
static int check_quantized(const std::vector<Number>& x, const std::vector<uint8_t>& w,
                           const std::vector<Constant>& constants, const std::vector<Number>& y, int64_t rows,
                           int64_t outputs, int64_t groups, int group, int bits, int x_bits) {
  const int64_t columns = groups * group, C = bits == 4 ? 8 : 4;
  int wrong = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t o = 0; o < outputs; o++) {
      double sum = 0, size = 1;
      for (int64_t g = 0; g < groups; g++) {
        const Constant* constant = &constants[((o / 16 * groups + g) * 2) * 16 + o % 16];
        const Number* group_of_x = &x[row * columns + g * group];
        auto some_x = rounded(group_of_x, group);
        if (x_bits == 16)  // all of x, to this check
          for (int i = 0; i < group; i++) some_x[i] = float_of(group_of_x[i]);
        for (int i = 0; i < group; i++) {
          const int64_t column = g * group + i, within = column % C;
          const uint8_t byte = w[((o / 16 * (columns / C) + column / C) * 16 + o % 16) * 4 + within % 4];
          const int number = bits == 8 ? byte : within < 4 ? byte & 15 : byte >> 4;
          const double term = some_x[i] * (number * double(float_of(constant[0])) + float_of(constant[16]));
          sum += term;
          size += std::abs(term);
        }
      }
      // A number halfway between two bytes may become either.
      wrong |= differs("quantized product", y[row * outputs + o], sum, sizeof(Number) == 4 ? 300 * size : size);
    }
  return wrong;
}

// Row r reads the slots from starts[r] on, counts[r] of them.
template <typename Number>
static int check_attention(const std::vector<Number>& query, const std::vector<Number>& keys,
                           const std::vector<Number>& out, const std::vector<int64_t>& starts,
                           const std::vector<int64_t>& counts, int64_t queries, int64_t kv_heads, int64_t size,
                           double scale) {
  const int64_t heads = queries * kv_heads;
  int wrong = 0;
  for (int64_t row = 0; row < int64_t(starts.size()); row++)
    for (int64_t head = 0; head < heads; head++) {
      const auto key = [&](int64_t slot, int64_t i) {
        return double(float_of(keys[((starts[row] + slot) * kv_heads + head / queries) * size + i]));
      };
      std::vector<double> weights(counts[row]);
      for (int64_t slot = 0; slot < counts[row]; slot++)
        for (int64_t i = 0; i < size; i++)
          weights[slot] += key(slot, i) * float_of(query[(row * heads + head) * size + i]) * scale;
      const double largest = *std::max_element(weights.begin(), weights.end());
      double total = 0;
      for (double& weight : weights) total += weight = std::exp(weight - largest);
      for (int64_t i = 0; i < size; i++) {
        double mean = 0;
        for (int64_t slot = 0; slot < counts[row]; slot++) mean += weights[slot] / total * key(slot, i);
        wrong |= differs("attention", out[(row * heads + head) * size + i], mean, 4);
      }
    }
  return wrong;
}
