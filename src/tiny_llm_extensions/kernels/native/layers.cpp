// A step in one call, from ids to logits: the kernels of Day 4.1, that of chunks, and those between the products, by one
// team of threads. Between two parts of a layer every thread waits for the others. Products are those of all rows. The row
// of a decode attends as soon as its own key is kept; the rows of a chunk attend when the keys of all rows are.
//
// Each kernel is a file with names of its own, so it has a namespace. What they include stands here, outside of those.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kept.h"
#include "unit.h"

namespace product {
#include "product.cpp"
}
namespace quantized {
#include "quantized_product.cpp"
}
namespace tiles {
#ifdef MATRIX_UNIT
#include "matrix_unit.h"
#else
#include "quantized_tiles.h"
#endif
}
namespace decodes {
#include "decode_attention.cpp"
}
namespace prompts {
#include "prompt_attention.cpp"
}
namespace between {
#include "between_products.cpp"
}

// Fields of 8 bytes each, in the order in which layers.py writes them.
struct Matrix {
  const void *w, *constants;
  const float* bias;
  int64_t outputs, columns, group, bits, type_of_constants, x_bits;  // no bits: plain numbers; no outputs: no matrix
};

struct Layer {
  const void *input_norm, *mlp_norm, *query_norm, *key_norm;
  int64_t is_windowed;
  Matrix in[3], out, gate_up[2], down;
  // Of a mixture of experts, which has neither gate and up nor down of its own:
  Matrix router;
  const Matrix* experts;  // (num_experts, 2): each one's gate above its up, and its down
  int64_t num_experts, chosen, renormalises;
};

// What comes before the layers and after them.
struct Ends {
  Matrix table;
  const void* norm;
  Matrix head;
};

struct Runs {
  const int64_t *starts, *counts, *runs;
};

// A chunk: neighbouring rows of a text that read `tokens` slots, those of the rows last.
struct Text {
  int64_t row, rows, tokens, slots;  // slots: where its own begin in `Step::text_slots`
};

// Keys and values, each (slots, kv_heads, head_size), and in int8 the scales of each, (slots, kv_heads).
struct Pool {
  void *keys, *values;
  uint16_t *key_scales, *value_scales;
};

struct Step {
  void *x, *logits;                  // (rows, size), and (num_samples, outputs of the head): written
  const float *cosines, *sines;      // (positions of a text, half of head_size)
  Runs runs[2];                      // of layers without and with a window; rows of chunks have none
  const int64_t *positions, *slots;  // (rows)
  const int64_t* ids;                // (rows): x begins as these rows of the table, if there is one
  const int64_t* sample_rows;        // (num_samples): rows of x that reach the head, if there is one
  const Text* texts;                 // (num_texts)
  const int64_t* text_slots;         // (num_text_slots): each text's are filled up to a multiple of 32
  const Layer* layers;               // (num_layers)
  const Ends* ends;                  // null where there are no layers
  const Pool* pools;                 // (num_layers)
  int64_t num_layers, num_samples, num_texts, num_text_slots, window;  // no window is 0
  int64_t rows, size, heads, kv_heads, head_size, hidden;  // hidden: columns of the widest down
};

// Where threads wait for each other. They are as many as have come: OpenMP may give fewer than were asked for. One that
// waits longer than a few microseconds lets others run, which may be those that it waits for.
class Meeting {
 public:
  std::atomic<int64_t> next{0};  // of the pieces that no thread has taken

  void wait(int threads) {
    const int now = rounds.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived.store(0, std::memory_order_relaxed);
      next.store(0, std::memory_order_relaxed);
      rounds.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; rounds.load(std::memory_order_acquire) == now; spins++)
      if (spins >= SPINS) std::this_thread::yield();
  }

 private:
  static constexpr int SPINS = 4000;
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> rounds{0};
};

// One thread of a team.
struct Member {
  Meeting& meeting;
  int thread, threads;

  // `work(i)` for all i below `count`, in shares of the same size.
  template <typename Work>
  void share(int64_t count, Work work) {
    for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; i++) work(i);
    meeting.wait(threads);
  }

  // The same for pieces of different sizes: each idle thread takes the next one.
  template <typename Work>
  void take(int64_t count, Work work) {
    for (int64_t i; (i = meeting.next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
    meeting.wait(threads);
  }
};

// Which rows each expert of a mixture computes, in pairs of a row and one of its experts.
struct Routes {
  int64_t chosen;                         // experts of each row
  std::vector<int64_t> experts, places;   // (pairs): the expert of pair row · chosen + i, and where its output is
  std::vector<int64_t> rows, begins;      // (pairs): the row of each output; (num_experts + 1): where an expert's begin
  std::vector<float> weights;             // (pairs)

  // logits: (rows, num_experts)
  template <typename Number>
  void choose(const Layer& l, const Number* logits, int64_t num_rows) {
    chosen = l.chosen;
    for (auto* each : {&experts, &places, &rows}) each->resize(num_rows * chosen);
    weights.resize(num_rows * chosen);
    for (int64_t row = 0; row < num_rows; row++) choose_for(l, logits + row * l.num_experts, row * chosen);
    begins.assign(l.num_experts + 1, 0);
    for (const int64_t expert : experts) begins[expert + 1]++;
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    std::vector<int64_t> next(begins);
    for (int64_t pair = 0; pair < num_rows * chosen; pair++) {
      places[pair] = next[experts[pair]]++;
      rows[places[pair]] = pair / chosen;
    }
  }

 private:
  // The most probable experts of a row, and their probabilities among all of them.
  template <typename Number>
  void choose_for(const Layer& l, const Number* logits, int64_t pair) {
    std::vector<float> scores(l.num_experts);
    for (int64_t i = 0; i < l.num_experts; i += LINE)
      between::store_some(&scores[i], between::load_some(logits + i, l.num_experts - i), l.num_experts - i);
    const float most = *std::max_element(scores.begin(), scores.end());
    for (float& score : scores) score = expf(score - most);
    std::vector<int64_t> order(l.num_experts);
    std::iota(order.begin(), order.end(), 0);
    const auto is_before = [&](int64_t a, int64_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); };
    std::partial_sort(order.begin(), order.begin() + chosen, order.end(), is_before);
    float sum = 0;
    for (int64_t i = 0; i < (l.renormalises ? chosen : l.num_experts); i++) sum += scores[order[i]];
    for (int64_t i = 0; i < chosen; i++) {
      experts[pair + i] = order[i];
      weights[pair + i] = scores[order[i]] / sum;
    }
  }
};

constexpr int64_t PIECE = quantized::MOST_COLUMNS;  // columns of a row that one thread fills: whole groups
constexpr int64_t MANY_ROWS = 32;  // which are enough for all threads, and multiplied in tiles

static quantized::QuantizedProduct quantized_product(const Matrix& m, const void* x, void* y, int64_t rows, void* rounded,
                                                     float* scales, bool is_bf16) {
  float* sums = scales + (m.bits > 0 ? tiles::Tiles{rows}.numbers(m.columns / m.group) : 0);
  return {x, (const uint8_t*)m.w, m.constants, m.bias, y, rounded, scales, sums, rows, m.outputs, m.columns,
          int(m.group), int(m.bits), int(m.type_of_constants), int(m.x_bits), is_bf16};
}

template <typename Number>
static int multiply_blocks(const product::Product<Number>& p, int64_t b) {
  using namespace product;
  if (b + BLOCKS <= p.blocks()) return product::multiply_blocks<ROWS<Number>>(p, 0, b);
  int task = 0;
  for (; b < p.blocks(); b++)
    for (int64_t row = 0; row < p.rows; row++) task = blank(task, multiply_line(p, row, b));
  return task;
}

// Column `column` of a row of the outputs of neighbouring matrices, which are (rows, outputs) each.
template <typename Number>
static Number* output_at(const Matrix* m, Number* y, int64_t rows, int64_t row, int64_t column) {
  for (; column >= m->outputs; m++) {
    y += rows * m->outputs;
    column -= m->outputs;
  }
  return y + row * m->outputs + column;
}

// Number `place` of line `line` of a matrix' constants.
static float constant(const Matrix& m, int64_t line, int64_t place) {
  const int64_t at = line * LINE;
  const Line all = m.type_of_constants == quantized::OF_FLOAT16 ? constants_at((const Float16*)m.constants + at)
                   : m.type_of_constants == quantized::OF_BF16  ? constants_at((const uint16_t*)m.constants + at)
                                                                : constants_at((const float*)m.constants + at);
  float numbers[LINE];
  store(numbers, all, LINE);
  return numbers[place];
}

// Columns from `first` on of a quantised matrix' row, a line of them.
template <typename Number>
static void unpack(const Matrix& m, int64_t row, int64_t first, Number* to) {
  const int64_t block = row / LINE, place = row % LINE, group = block * (m.columns / m.group) + first / m.group;
  const float scale = constant(m, 2 * group, place), bias = constant(m, 2 * group + 1, place);
  const int columns = m.bits == 4 ? 8 : 4;  // of each output in a line
  const uint8_t* w = (const uint8_t*)m.w + block * m.columns / columns * 4 * LINE + 4 * place;
  float numbers[LINE];
  for (int64_t k = first; k < first + LINE; k++) {
    const uint8_t byte = w[k / columns * 4 * LINE + k % 4];
    // Rounded twice, as where the table is read without this call: the compiler would make one operation of both.
    const volatile float product = scale * (m.bits == 8 ? byte : k % 8 < 4 ? byte & 15 : byte >> 4);
    numbers[k - first] = product + bias;
  }
  store(to, load(numbers), LINE);
}

// The same of any packed matrix.
template <typename Number>
static void look_up(const Matrix& m, int64_t row, int64_t first, Number* to) {
  if (m.bits > 0) return unpack(m, row, first, to);
  constexpr int64_t columns = 4 / sizeof(Number);  // of each output in a line; a row has whole lines
  const Number* w = (const Number*)m.w + row / LINE * LINE * m.columns + row % LINE * columns;
  for (int64_t k = first; k < first + LINE; k++) to[k - first] = w[k / columns * LINE * columns + k % columns];
}

template <typename Number>
struct Team {
  const Step& s;
  float eps, scale;
  Number *x, *filled, *wide, *query, *packed, *outputs;
  void* rounded;
  float* scales;
  Routes& routes;
  Member me;
  int task;

  // y = filled Wᵀ for each of `count` matrices and all rows. First `fill(row, column, count)` writes pieces of `filled`,
  // and `finish(row, rows, column, columns)` reads pieces of y that are computed.
  template <typename Fill, typename Finish>
  void multiply(const Matrix* m, int count, int64_t rows, Number* y, Fill fill, Finish finish) {
    const Matrix *const first = m, *const end = std::find_if(m, m + count, [](const Matrix& each) { return each.outputs == 0; });
    while (m < end) {
      const Matrix* const next = std::find_if(m, end, [&](const Matrix& each) { return !rounds_alike(*m, each); });
      const auto p = product_of(*m, y, rows);
      const bool fits = m->bits > 0 ? m->x_bits == 16 : tiles::takes_plain(sizeof(Number) == 2, m->columns);
      const bool in_tiles = rows >= MANY_ROWS && fits;
      const int64_t piece = rows >= MANY_ROWS ? m->columns : PIECE, pieces = (m->columns + piece - 1) / piece;
      me.share(rows * pieces, [&](int64_t i) {
        const int64_t row = i / pieces, column = i % pieces * piece, some = std::min(piece, m->columns - column);
        if (m == first) fill(row, column, some);
        if (in_tiles) return tiles::round_groups(p, filled, row, column, column + some);
        for (int64_t g = column; m->bits > 0 && g < column + some; g += m->group) round_group(p, g / m->group * rows + row);
      });
      if (in_tiles)
        multiply_tiles(m, next, rows, y, finish);
      else
        multiply_blocks(m, next, rows, y, finish);
      for (; m < next; m++) y += rows * m->outputs;
    }
  }

  // Whether matrices multiply by the same integers, or by the numbers as they are.
  static bool rounds_alike(const Matrix& a, const Matrix& b) {
    return a.bits > 0 ? b.bits > 0 && a.group == b.group && a.x_bits == b.x_bits : b.bits == 0;
  }

  quantized::QuantizedProduct product_of(const Matrix& m, Number* y, int64_t rows) const {
    return quantized_product(m, filled, y, rows, rounded, scales, sizeof(Number) == 2);
  }

  // Piece i of the products of several matrices: takes it from i, and moves to its matrix and the matrix' outputs.
  template <typename Pieces>
  static void move_to(int64_t& i, const Matrix*& m, Number*& y, int64_t rows, Pieces pieces) {
    for (; i >= pieces(*m); m++) {
      i -= pieces(*m);
      y += rows * m->outputs;
    }
  }

  template <typename Finish>
  void multiply_tiles(const Matrix* first, const Matrix* end, int64_t rows, Number* to, Finish finish) {
    const auto pieces = [&](const Matrix& m) { return tiles::pieces_of(product_of(m, nullptr, rows)); };
    int64_t all = 0;
    for (const Matrix* m = first; m < end; m++) all += pieces(*m);
    me.take(all, [&](int64_t i) {
      const Matrix* m = first;
      Number* y = to;
      move_to(i, m, y, rows, pieces);
      const auto p = product_of(*m, y, rows);
      const auto piece = tiles::piece_at(p, i);
      multiply_piece(p, piece);
      const int64_t column = piece.block * LINE;
      finish(piece.row, piece.rows, column, std::min(piece.blocks * LINE, p.outputs - column));
    });
  }

  // By the kernels of Day 4.1.
  template <typename Finish>
  void multiply_blocks(const Matrix* first, const Matrix* end, int64_t rows, Number* to, Finish finish) {
    const int64_t outputs = (first->bits > 0 ? 1 : product::BLOCKS) * LINE;  // of a piece
    const auto pieces = [&](const Matrix& m) { return (m.outputs + outputs - 1) / outputs; };
    int64_t all = 0;
    for (const Matrix* m = first; m < end; m++) all += pieces(*m);
    me.share(all, [&](int64_t i) {
      const Matrix* m = first;
      Number* y = to;
      move_to(i, m, y, rows, pieces);
      task = blank(task, multiply_block(*m, product_of(*m, y, rows), rows, y, i * outputs / LINE));
      finish(0, rows, i * outputs, std::min(outputs, m->outputs - i * outputs));
    });
  }

  int multiply_block(const Matrix& m, const quantized::QuantizedProduct& p, int64_t rows, Number* y, int64_t b) {
    if (m.bits == 0)
      return ::multiply_blocks(product::Product<Number>{filled, (const Number*)m.w, m.bias, y, rows, m.outputs, m.columns}, b);
    return quantized::multiply_block(p, b);
  }

  // Some columns of `filled`, from row `from` of x.
  void normalize(const void* weight, int64_t from, int64_t row, int64_t column, int64_t count) {
    const Number* numbers = x + from * s.size;
    between::scale_numbers(numbers + column, (const Number*)weight + column, between::inverse_root(numbers, s.size, eps),
                           filled + row * s.size + column, count);
  }

  // x += some columns of some rows of wide
  void add_residual(int64_t from, int64_t rows, int64_t column, int64_t count) {
    for (int64_t row = from; row < from + rows; row++)
      between::add_numbers(x + row * s.size + column, wide + row * s.size + column, count);
  }

  // One head of keys of a row, and the queries that share it: RoPE, the row's own place in the pages, and the attention
  // of a row that is no part of a chunk.
  void attend(const Layer& l, const Rows<Number>& keys, const Rows<Number>& values, int64_t row, int64_t kv_head) {
    const int64_t queries = s.heads / s.kv_heads, size = s.head_size, place = s.slots[row] * s.kv_heads + kv_head;
    const int64_t angles = s.positions[row] * (size / 2);
    const float *cosines = s.cosines + angles, *sines = s.sines + angles;
    const auto head = [&](int64_t i) { return output_at(l.in, wide, s.rows, row, i * size); };
    for (int64_t i = kv_head * queries; i < (kv_head + 1) * queries; i++)
      between::turn_head(head(i), (const Number*)l.query_norm, eps, cosines, sines, query + (row * s.heads + i) * size, size);
    Number* key = head(s.heads + kv_head);
    between::turn_head(key, (const Number*)l.key_norm, eps, cosines, sines, key, size);
    keep(keys, place, key);
    keep(values, place, head(s.heads + s.kv_heads + kv_head));
    const Runs& r = s.runs[l.is_windowed];
    if (r.runs[row] == r.runs[row + 1]) return;
    const decodes::Decodes<Number> d{query, keys, values, filled, r.starts, r.counts, r.runs, s.heads, s.kv_heads, size, scale};
    task = blank(task, decodes::attend_row(d, row, kv_head));
  }

  prompts::Chunk<Number> chunk(const Text& t, bool is_windowed, const Rows<Number>& keys, const Rows<Number>& values) {
    const int64_t numbers = s.kv_heads * s.head_size, before = t.row * s.heads * s.head_size;
    return {query + before, keys, values, s.text_slots + t.slots, filled + before, packed + t.slots * numbers,
            packed + (s.num_text_slots + t.slots) * numbers, t.rows, t.tokens, s.heads, s.kv_heads, s.head_size,
            is_windowed ? s.window : 0, scale};
  }

  // `work(text, i)` for all i below `count(text)`, for every text.
  template <typename Count, typename Work>
  void take_texts(Count count, Work work) {
    int64_t all = 0;
    for (int64_t t = 0; t < s.num_texts; t++) all += count(s.texts[t]);
    me.take(all, [&](int64_t i) {
      const Text* text = s.texts;
      for (; i >= count(*text); text++) i -= count(*text);
      work(*text, i);
    });
  }

  // The rows of all chunks, by the head of keys that they share.
  void attend_texts(const Layer& l, const Rows<Number>& keys, const Rows<Number>& values) {
    const auto of = [&](const Text& t) { return chunk(t, l.is_windowed, keys, values); };
    take_texts([&](const Text& t) { return of(t).pieces_to_pack(); }, [&](const Text& t, int64_t i) { pack_piece(of(t), i); });
    take_texts([&](const Text& t) { return of(t).pieces(); }, [&](const Text& t, int64_t i) { attend_piece(of(t), i); });
  }

  // Some columns of `filled`, from the products of `rows` rows with gate and up.
  void gate(const Matrix* gate_up, int64_t hidden, int64_t rows, int64_t row, int64_t column, int64_t count) {
    const auto at = [&](int64_t i) { return output_at(gate_up, wide, rows, row, i); };
    between::gate_numbers(at(column), at(hidden + column), filled + row * hidden + column, count);
  }

  // The MLP of a layer with experts, one after the other: each with the rows that the router gives it.
  void mix(const Layer& l) {
    const auto nothing = [](auto...) {};
    multiply(&l.router, 1, s.rows, wide, [&](int64_t row, auto... where) { normalize(l.mlp_norm, row, row, where...); }, nothing);
    if (me.thread == 0) routes.choose(l, wide, s.rows);
    me.meeting.wait(me.threads);
    for (int64_t e = 0; e < l.num_experts; e++) {
      const Matrix *gate_up = l.experts + 2 * e, *down = gate_up + 1;
      const int64_t first = routes.begins[e], rows = routes.begins[e + 1] - first;
      if (rows == 0) continue;
      const auto norm = [&](int64_t row, auto... where) { normalize(l.mlp_norm, routes.rows[first + row], row, where...); };
      multiply(gate_up, 1, rows, wide, norm, nothing);
      const auto gates = [&](auto... where) { gate(gate_up, down->columns, rows, where...); };
      multiply(down, 1, rows, outputs + first * s.size, gates, nothing);
    }
    me.share(s.rows * s.size / LINE, [&](int64_t i) { add_experts(i * LINE / s.size, i * LINE % s.size); });
  }

  // x += a line of the sum of a row's experts, rounded once
  void add_experts(int64_t row, int64_t column) {
    Line sum = line_of(0);
    for (int64_t pair = row * routes.chosen; pair < (row + 1) * routes.chosen; pair++)
      sum = multiply_add(line_of(routes.weights[pair]), load(outputs + routes.places[pair] * s.size + column), sum);
    Number mixed[LINE];
    store(mixed, sum, LINE);
    between::add_numbers(x + row * s.size + column, mixed, LINE);
  }

  void compute_layer(const Layer& l, const Pool& pool) {
    const Rows<Number> keys{(Kept<Number>*)pool.keys, pool.key_scales, s.head_size};
    const Rows<Number> values{(Kept<Number>*)pool.values, pool.value_scales, s.head_size};
    const auto nothing = [](auto...) {};
    const auto add = [&](auto... where) { add_residual(where...); };
    const auto norm = [&](const void* weight) {
      return [=](int64_t row, auto... where) { normalize(weight, row, row, where...); };
    };
    multiply(l.in, 3, s.rows, wide, norm(l.input_norm), nothing);
    me.take(s.rows * s.kv_heads, [&](int64_t i) { attend(l, keys, values, i / s.kv_heads, i % s.kv_heads); });
    if (s.num_texts > 0) attend_texts(l, keys, values);
    multiply(&l.out, 1, s.rows, wide, nothing, add);
    if (l.num_experts > 0) return mix(l);
    multiply(l.gate_up, 2, s.rows, wide, norm(l.mlp_norm), nothing);
    multiply(&l.down, 1, s.rows, wide, [&](auto... where) { gate(l.gate_up, l.down.columns, s.rows, where...); }, add);
  }

  void compute() {
    if (s.ends == nullptr) return;
    const Matrix& table = s.ends->table;
    me.share(table.outputs > 0 ? s.rows * s.size / LINE : 0, [&](int64_t i) {
      look_up(table, s.ids[i * LINE / s.size], i * LINE % s.size, x + i * LINE);
    });
    for (int64_t i = 0; i < s.num_layers; i++) compute_layer(s.layers[i], s.pools[i]);
    const auto norm = [&](int64_t row, auto... where) { normalize(s.ends->norm, s.sample_rows[row], row, where...); };
    multiply(&s.ends->head, 1, s.num_samples, (Number*)s.logits, norm, [](auto...) {});
  }
};

template <typename Number>
static int compute(const Step& s, float eps, float scale, int threads) {
  const int64_t heads = s.heads * s.head_size, most = std::max({s.size, heads, s.hidden});
  const int64_t rows = std::max(s.rows, s.num_samples);
  int64_t widest = std::max({s.size, heads + 2 * s.kv_heads * s.head_size, 2 * s.hidden}), chosen = 0;
  for (const Layer* l = s.layers; l < s.layers + s.num_layers; l++) {
    widest = std::max(widest, l->num_experts);
    chosen = std::max(chosen, l->chosen);
  }
  const std::unique_ptr<Number[]> numbers(new Number[rows * (most + widest + heads)]);
  const std::unique_ptr<Number[]> outputs(new Number[s.rows * chosen * s.size]);
  const std::unique_ptr<Number[]> packed(new Number[2 * s.num_text_slots * s.kv_heads * s.head_size]);
  const std::unique_ptr<Columns[]> rounded(new Columns[Columns::count(tiles::Tiles{rows}.packed(most))]);
  const std::unique_ptr<float[]> scales(new float[tiles::Tiles{rows}.numbers(2 * most / 32)]);
  Number *filled = numbers.get(), *wide = filled + rows * most, *query = wide + rows * widest;
  Meeting meeting;
  Routes routes;
  int task = 0;
#pragma omp parallel num_threads(threads) reduction(max : task)
  {
#ifdef _OPENMP
    const Member me{meeting, omp_get_thread_num(), omp_get_num_threads()};
#else
    const Member me{meeting, 0, 1};
#endif
    Team<Number> team{s,     eps,          scale,         (Number*)s.x, filled, wide, query, packed.get(), outputs.get(),
                      rounded.get(), scales.get(), routes, me,           task};
    team.compute();
    task = team.task;
  }
  return task;
}

extern "C" int compute_layers(const Step* step, float eps, float scale, int is_bf16, int threads) {
  return is_bf16 ? compute<uint16_t>(*step, eps, scale, threads) : compute<float>(*step, eps, scale, threads);
}
