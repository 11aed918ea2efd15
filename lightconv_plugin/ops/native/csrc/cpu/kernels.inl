// The CPU kernels, compiled once for each vector width: LIGHTCONV_TABLE names the table, LIGHTCONV_BITS the width.
// Everything is in an unnamed namespace and calls nothing but the compiler's built-ins: code for one width must never
// be linked into another's.
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/kernels.h"
#include "random.h"

namespace lightconv {
namespace {

#include "cpu/vector.h"
#include "cpu/weights.h"
#include "cpu/tile.h"
#include "cpu/products.h"
#include "cpu/peak.h"

constexpr int64_t kChunk = 128;  // positions a unit takes: long against the K - 1 rows it shares with its neighbours

// Memory that a thread keeps from unit to unit, handed out in whole vectors.
class Arena {
 public:
  explicit Arena(void* memory) : next_((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64) {}
  template <class A>
  A* take(int64_t count) {
    A* here = reinterpret_cast<A*>(next_);
    next_ += round_up(count * static_cast<int64_t>(sizeof(A)), 64) + 64;  // a gap: rows of two arrays fall apart
    return here;
  }
  uintptr_t used() const { return next_ + 64; }

 private:
  uintptr_t next_;
};

template <class A>
struct Scratch {
  int64_t channels;  // of a packed row: whole vectors
  int64_t taps;      // of a row of kernels: whole vectors
  int64_t columns;   // of the transposed inputs
  int64_t products;  // of a row of inner products
  A *x, *out, *kernels, *factors, *used, *wide, *transposed, *product, *row, *block;

  Scratch(const Conv& conv, const Units& units, bool backward, Arena arena) {
    constexpr int n = kLanes<A>;
    const int64_t rows = units.rows + conv.K - 1;
    channels = round_up(units.channels, n), taps = round_up(conv.K, n);
    products = round_up(conv.K + kProductRows - 1, n);
    columns = round_up(units.rows + products + n, n);
    x = arena.take<A>(rows * channels);
    out = arena.take<A>(units.rows * channels);
    kernels = factors = used = wide = transposed = product = row = block = nullptr;
    if (units.wide) wide = arena.take<A>(conv.K * channels);
    if (conv.per_position()) {
      kernels = used = arena.take<A>(rows * taps);
      if (conv.dropconnect > 0) factors = arena.take<A>(rows * taps), used = arena.take<A>(rows * taps);
    }
    if (backward) {
      block = arena.take<A>(rows * channels);
      row = arena.take<A>(round_up(conv.K, n) * n);
      if (conv.per_position()) {
        transposed = arena.take<A>(channels * columns);
        product = arena.take<A>(kProductRows * products);
      }
    }
    end = arena.used();
  }
  uintptr_t end;
};

template <class A>
Units units_of(const Conv& conv, bool backward) {
  Units units{};
  const int64_t R = conv.C / conv.H;
  constexpr int64_t widest = kMaxNV * kLanes<A>;
  units.chunks = (conv.T + kChunk - 1) / kChunk;
  units.rows = (conv.T + units.chunks - 1) / units.chunks;
  units.sentences = units.rows >= kChunk ? 1 : kChunk / units.rows;
  units.batches = (conv.B + units.sentences - 1) / units.sentences;
  units.wide = !conv.per_position() && R < kLanes<A>;
  units.channels = units.wide ? widest / R * R : R;  // whole heads
  units.groups = (conv.C + units.channels - 1) / units.channels;
  units.count = units.groups * units.chunks * units.batches;
  units.partials = units.chunks * units.batches;
  units.scratch = Scratch<A>(conv, units, backward, Arena(nullptr)).end;
  return units;
}

// Where a unit lies. Groups of channels follow one another where they share pages of memory; wide ones stay outermost,
// so that their expanded kernels are made once.
struct Place {
  int64_t group, partial, b, b_end, t, t_end, c, channels;

  Place(const Conv& conv, const Units& units, int64_t unit) {
    group = units.wide ? unit / units.partials : unit % units.groups;
    partial = units.wide ? unit % units.partials : unit / units.groups;
    b = partial % units.batches * units.sentences;
    b_end = b + units.sentences < conv.B ? b + units.sentences : conv.B;
    t = partial / units.batches * units.rows;
    t_end = t + units.rows < conv.T ? t + units.rows : conv.T;
    c = group * units.channels;
    channels = c + units.channels < conv.C ? units.channels : conv.C - c;
  }
};

// Rows begin..end of a sentence's channels, side by side, lanes beyond the channels 0.
template <class A, class S>
void pack(const Conv& conv, const void* from, const Place& place, int64_t b, int64_t begin, int64_t end, int64_t row,
          A* to) {
  const S* here = static_cast<const S*>(from) + (begin * conv.B + b) * conv.C + place.c;
  for (int64_t s = begin; s < end; ++s, here += conv.B * conv.C, to += row) {
    convert(to, here, place.channels);
    for (int64_t c = place.channels; c < row; ++c) to[c] = 0;
  }
}

// The kernels of head `place.group` at positions begin..end: normalised to `kernels`, with DropConnect to `used`.
template <class A, class S>
void make_kernels(const Conv& conv, const Scratch<A>& scratch, const Place& place, int64_t b, int64_t begin,
                  int64_t end) {
  const int K = static_cast<int>(conv.K), L = static_cast<int>(scratch.taps);
  const int64_t all = conv.T * conv.B * conv.H * conv.K;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t n = (t * conv.B + b) * conv.H + place.group;
    A* to = scratch.kernels + (t - begin) * L;
    if (conv.dynamic) {
      kernel_row<A>(static_cast<const S*>(conv.weight) + n * K, all - n * K, K, L, conv.softmax, to);
    } else {
      convert(to, static_cast<const A*>(conv.light) + place.group * K, K);
      for (int j = K; j < L; ++j) to[j] = 0;
    }
    if (conv.dropconnect > 0) {
      A *factors = scratch.factors + (t - begin) * L, *used = scratch.used + (t - begin) * L;
      keep_row(conv.seed, static_cast<uint64_t>(n), conv.dropconnect, L, factors);
      for (int j = 0; j < L; ++j) used[j] = to[j] * factors[j];
    }
  }
}

template <class A>
void widen(const Conv& conv, const Place& place, const Scratch<A>& scratch) {
  const int64_t R = conv.C / conv.H;
  const A* light = static_cast<const A*>(conv.light);
  for (int64_t c = 0; c < scratch.channels; ++c) {
    const int64_t head = (place.c + (c < place.channels ? c : 0)) / R;
    for (int64_t j = 0; j < conv.K; ++j) scratch.wide[j * scratch.channels + c] = light[head * conv.K + j];
  }
}

// A convolution of a unit's positions, to a tensor (T, B, C): straight where its rows are whole vectors of A.
template <class A, class S>
void to_tensor(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, int64_t b,
               const Stretch<A>& stretch, void* tensor) {
  S* to = static_cast<S*>(tensor) + (place.t * conv.B + b) * conv.C + place.c;
  const int64_t to_row = conv.B * conv.C;
  const int vectors = static_cast<int>(scratch.channels / kLanes<A>);
  const bool straight = std::is_same_v<A, S> && place.channels == scratch.channels;
  A* out = straight ? reinterpret_cast<A*>(to) : scratch.out;
  const int64_t out_row = straight ? to_row : scratch.channels;
  if (units.wide)
    convolve<A, true>(stretch, place.t, place.t_end, vectors, out, out_row);
  else
    convolve<A, false>(stretch, place.t, place.t_end, vectors, out, out_row);
  if (straight) return;
  for (int64_t t = place.t; t < place.t_end; ++t, to += to_row, out += out_row) convert(to, out, place.channels);
}

template <class S>
void forward_units(const Conv& conv, const Units& units, void* out, void* memory, int64_t begin, int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, false, Arena(memory));
  const int64_t P = conv.padding_l;
  int64_t widened = -1;
  for (int64_t unit = begin; unit < end; ++unit) {
    const Place place(conv, units, unit);
    const int64_t first = place.t - P > 0 ? place.t - P : 0;
    const int64_t last = place.t_end - P + conv.K - 1 < conv.T ? place.t_end - P + conv.K - 1 : conv.T;
    if (units.wide && widened != place.group) widen(conv, place, scratch), widened = place.group;
    for (int64_t b = place.b; b < place.b_end; ++b) {
      pack<A, S>(conv, conv.x, place, b, first, last, scratch.channels, scratch.x);
      Stretch<A> stretch{scratch.x, first, scratch.channels, first, last, P, static_cast<int>(conv.K),
                         nullptr, 0, 0, 1, -1, scratch.channels};
      if (conv.per_position()) {
        make_kernels<A, S>(conv, scratch, place, b, place.t, place.t_end);
        stretch.w = scratch.used, stretch.w_first = place.t, stretch.w_step = scratch.taps;
        stretch.wi = scratch.taps - 1;
      } else {
        stretch.w = units.wide ? scratch.wide : static_cast<const A*>(conv.light) + place.group * conv.K;
      }
      to_tensor<A, S>(conv, units, scratch, place, b, stretch, out);
    }
  }
}

// LightConv without DropConnect: the unit's part of the gradient of the kernels, added to (H, K).
template <class A>
void light_sums(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const A* g,
                const A* x, int64_t begin, int64_t end, A* partial) {
  constexpr int n = kLanes<A>;
  const int K = static_cast<int>(conv.K);
  const int64_t R = conv.C / conv.H, positions = place.t_end - place.t;
  if (!units.wide)
    for (int64_t j = 0; j < conv.K * n; ++j) scratch.row[j] = 0;
  for (int64_t v = 0; v < scratch.channels; v += n) {
    each_tap_sum(g + v, x + v, scratch.channels, positions, begin, end, K, [&](int j, Vec<A> lanes) {
      if (!units.wide) {
        store(scratch.row + j * n, load(scratch.row + j * n) + lanes);
        return;
      }
      for (int l = 0; l < n && v + l < place.channels; ++l) partial[(place.c + v + l) / R * K + j] += lanes[l];
    });
  }
  if (!units.wide)
    for (int j = 0; j < K; ++j) partial[place.group * K + j] += sum<A>(load(scratch.row + j * n));
}

// A kernel for each position: the gradients of the unit's kernels, row by row: use(t, row of `taps` numbers) with the
// gradient of the weights before DropConnect. x_rows are the packed inputs first..last, g the gradient of position
// place.t; kernels' rows begin at position kernels_first.
template <class A, class Use>
void kernel_gradients(const Conv& conv, const Scratch<A>& scratch, const Place& place, const A* g, const A* x_rows,
                      int64_t first, int64_t last, int64_t kernels_first, Use use) {
  constexpr int n = kLanes<A>;
  const int64_t K = conv.K, P = conv.padding_l, origin = place.t - P;  // column 0: what position t reads with tap 0
  const int64_t columns = round_up(place.t_end - place.t + scratch.products, n);
  for (int64_t s = 0; s < columns; s += n) {
    for (int64_t c = 0; c < scratch.channels; c += n) {
      Vec<A> square[n];
      for (int i = 0; i < n; ++i) {
        const int64_t input = origin + s + i;
        square[i] = input >= first && input < last ? load(x_rows + (input - first) * scratch.channels + c) : Vec<A>{};
      }
      transpose<A>(square);
      for (int i = 0; i < n; ++i) store(scratch.transposed + (c + i) * scratch.columns + s, square[i]);
    }
  }
  const int vectors = static_cast<int>(scratch.products / n);
  for (int64_t t = place.t; t < place.t_end; t += kProductRows) {
    const int rows = static_cast<int>(place.t_end - t < kProductRows ? place.t_end - t : kProductRows);
    inner_products(g + (t - place.t) * scratch.channels, scratch.channels, rows, scratch.transposed + (t - place.t),
                   scratch.columns, place.channels, vectors, scratch.product, scratch.products);
    for (int i = 0; i < rows; ++i) {
      const A* product = scratch.product + i * scratch.products + i;
      const int64_t begin = P - t - i > 0 ? P - t - i : 0, end = conv.T + P - t - i < K ? conv.T + P - t - i : K;
      A* row = scratch.row;
      for (int64_t j = 0; j < begin; ++j) row[j] = 0;
      for (int64_t j = begin; j < end; ++j) row[j] = product[j];
      for (int64_t j = end; j < scratch.taps; ++j) row[j] = 0;
      if (conv.dropconnect > 0) {
        const A* factors = scratch.factors + (t + i - kernels_first) * scratch.taps;
        for (int64_t j = 0; j < scratch.taps; ++j) row[j] *= factors[j];
      }
      use(t + i, row);
    }
  }
}

template <class S>
void backward_units(const Conv& conv, const Units& units, const Gradients& gradients, void* memory, int64_t begin,
                    int64_t end) {
  using A = Sums<S>;
  const Scratch<A> scratch(conv, units, true, Arena(memory));
  const int64_t K = conv.K, P = conv.padding_l, back = K - 1 - P;  // a gradient's padding
  int64_t widened = -1;
  for (int64_t unit = begin; unit < end; ++unit) {
    const Place place(conv, units, unit);
    const int64_t first = place.t - P > 0 ? place.t - P : 0;
    const int64_t last = place.t_end - P + K - 1 < conv.T ? place.t_end - P + K - 1 : conv.T;
    const int64_t g_first = place.t - back > 0 ? place.t - back : 0;
    const int64_t g_last = place.t_end + P < conv.T ? place.t_end + P : conv.T;
    A* partial = gradients.light_partials == nullptr
                     ? nullptr
                     : static_cast<A*>(gradients.light_partials) + place.partial * conv.H * K;
    if (units.wide && widened != place.group) widen(conv, place, scratch), widened = place.group;
    for (int64_t b = place.b; b < place.b_end; ++b) {
      A* g = scratch.block;
      pack<A, S>(conv, gradients.out, place, b, g_first, g_last, scratch.channels, g);
      if (conv.per_position()) make_kernels<A, S>(conv, scratch, place, b, g_first, g_last);
      if (gradients.x != nullptr) {
        Stretch<A> stretch{g, g_first, scratch.channels, g_first, g_last, back, static_cast<int>(K),
                           nullptr, 0, 0, -1, 1, scratch.channels};
        if (conv.per_position()) {
          stretch.w = scratch.used + K - 1, stretch.w_first = back + g_first, stretch.w_step = scratch.taps;
          stretch.wq = scratch.taps - 1;
        } else if (units.wide) {
          stretch.w = scratch.wide + (K - 1) * scratch.channels;
        } else {
          stretch.w = static_cast<const A*>(conv.light) + place.group * K + K - 1;
        }
        to_tensor<A, S>(conv, units, scratch, place, b, stretch, gradients.x);
      }
      if (gradients.weight == nullptr && partial == nullptr) continue;
      pack<A, S>(conv, conv.x, place, b, first, last, scratch.channels, scratch.x);
      const A* g_here = g + (place.t - g_first) * scratch.channels;
      if (!conv.per_position()) {
        const int64_t origin = place.t - P;
        light_sums(conv, units, scratch, place, g_here, scratch.x + (origin - first) * scratch.channels,
                   first - origin, last - origin, partial);
        continue;
      }
      kernel_gradients(conv, scratch, place, g_here, scratch.x, first, last, g_first, [&](int64_t t, A* row) {
        if (!conv.dynamic) {
          for (int64_t j = 0; j < K; ++j) partial[place.group * K + j] += row[j];
          return;
        }
        if (conv.softmax)
          softmax_backward(scratch.kernels + (t - g_first) * scratch.taps, static_cast<int>(scratch.taps), row);
        convert(static_cast<S*>(gradients.weight) + ((t * conv.B + b) * conv.H + place.group) * K, row, K);
      });
    }
  }
}

Units units(const Conv& conv, bool backward) {
  return conv.type == Scalar::f64 ? units_of<double>(conv, backward) : units_of<float>(conv, backward);
}

void forward(const Conv& conv, const Units& units, void* out, void* scratch, int64_t begin, int64_t end) {
  switch (conv.type) {
    case Scalar::f32: return forward_units<float>(conv, units, out, scratch, begin, end);
    case Scalar::f64: return forward_units<double>(conv, units, out, scratch, begin, end);
    case Scalar::bf16: return forward_units<Bf16>(conv, units, out, scratch, begin, end);
  }
}

void backward(const Conv& conv, const Units& units, const Gradients& gradients, void* scratch, int64_t begin,
              int64_t end) {
  switch (conv.type) {
    case Scalar::f32: return backward_units<float>(conv, units, gradients, scratch, begin, end);
    case Scalar::f64: return backward_units<double>(conv, units, gradients, scratch, begin, end);
    case Scalar::bf16: return backward_units<Bf16>(conv, units, gradients, scratch, begin, end);
  }
}

}  // namespace

const Kernels LIGHTCONV_TABLE = {LIGHTCONV_BITS, &units, &forward, &backward, &fma_loop};

}  // namespace lightconv
