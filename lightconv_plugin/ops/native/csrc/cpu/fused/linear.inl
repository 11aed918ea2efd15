// The kernels of linear layers in float32: y = x weight^T + bias. If relu is true, negative results become 0.

// ---- Few rows and a weight (out, in) that is not packed: it is read once, at the speed of memory, for all rows ----

template <int Rows, int Columns>
void linear_tile(const Linear& l, int64_t row, int64_t column) {
  constexpr int64_t kVector = kLanes<float>;
  Vec<float> sum[Rows][Columns] = {};
  const float* x = l.x + row * l.in;
  const float* weight = l.weight + column * l.in;
  int64_t i = 0;
  for (; i + kVector <= l.in; i += kVector) {
    Vec<float> w[Columns];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      w[c] = load(weight + c * l.in + i);
      __builtin_prefetch(weight + (Columns + c) * l.in + i);  // of the next columns, which are read next
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec<float> value = load(x + r * l.in + i);
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) sum[r][c] += value * w[c];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      float whole = l.bias == nullptr ? 0.0f : l.bias[column + c];
      for (int64_t j = i; j < l.in; ++j) whole += x[r * l.in + j] * weight[c * l.in + j];
      for (int64_t lane = 0; lane < kVector; ++lane) whole += sum[r][c][lane];
      l.y[(row + r) * l.out + column + c] = l.relu && whole < 0 ? 0 : whole;
    }
  }
}

template <int Columns>
void linear_rows(const Linear& l, int64_t column) {
  int64_t row = 0;
  for (; row + 4 <= l.rows; row += 4) linear_tile<4, Columns>(l, row, column);
  for (; row < l.rows; ++row) linear_tile<1, Columns>(l, row, column);
}

void linear_columns(const Linear& l, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) linear_rows<4>(l, column);
  for (; column < end; ++column) linear_rows<1>(l, column);
}

// ---- Any number of rows and a packed weight (ceil(out / 16), in, 16): blocks of 16 neighbouring outputs ----

// Rows and blocks of a tile, whose sums fill most of the registers.
constexpr int kTileRows = LIGHTCONV_BITS == 512 ? 8 : LIGHTCONV_BITS == 256 ? 5 : 2;
constexpr int kTileBlocks = LIGHTCONV_BITS == 512 ? 2 : 1;
constexpr int64_t kPanelNumbers = 196608;  // of packed weights that stay in a core's L2 cache
// For up to kFewProductRows rows, reading the weight dominates the time. So it is read from one end to the other.
// kNumbersAhead is the prefetch distance, 4 KiB, since the hardware prefetches too late.
constexpr int64_t kFewProductRows = 8, kNumbersAhead = 1024;

// Writes a vector of outputs of y from `column` on, from the sums of its rows.
template <int Rows, int Vectors>
inline void finish(const Linear& l, int64_t row, int64_t column, const Vec<float> (&sum)[Rows][Vectors], int v) {
  constexpr int n = kLanes<float>;
  const int64_t count = l.out - column < n ? l.out - column : n;
  if (count <= 0) return;
  float lanes[n] = {};
  if (l.bias != nullptr)
    for (int64_t lane = 0; lane < count; ++lane) lanes[lane] = l.bias[column + lane];
  const Vec<float> bias = load(lanes), lowest = Vec<float>{} + (l.relu ? 0 : -__builtin_inff());
  for (int r = 0; r < Rows; ++r) {
    Vec<float> value = sum[r][v] + bias;
    value = value < lowest ? lowest : value;  // NaN stays
    float* y = l.y + (row + r) * l.out + column;
    if (count == n) {
      store(y, value);
    } else {
      for (int64_t lane = 0; lane < count; ++lane) y[lane] = value[lane];
    }
  }
}

template <int Rows, int Blocks>
void packed_tile(const Linear& l, int64_t row, int64_t block) {
  constexpr int kVector = kLanes<float>, kVectors = 16 * Blocks / kVector;
  const float* x = l.x + row * l.in;
  const float* weight = static_cast<const float*>(l.packed.data) + 16 * block * l.in;
  Vec<float> sum[Rows][kVectors] = {};
  for (int64_t i = 0; i < l.in; ++i) {
    Vec<float> w[kVectors];
#pragma GCC unroll 2
    for (int b = 0; b < Blocks; ++b) __builtin_prefetch(weight + 16 * b * l.in + 16 * i + kNumbersAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) w[v] = load(weight + v * kVector / 16 * 16 * l.in + 16 * i + v * kVector % 16);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float value = x[r * l.in + i];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += value * w[v];
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) finish(l, row, 16 * block + v * kVector, sum, v);
}

// Computes a tile of at most `Rows` rows, or of as many as are left.
template <int Blocks, int Rows>
void packed_rows(const Linear& l, int64_t row, int64_t block) {
  if constexpr (Rows > 0) {
    if (l.rows - row >= Rows) return packed_tile<Rows, Blocks>(l, row, block);
    packed_rows<Blocks, Rows - 1>(l, row, block);
  }
}

// Computes the pairs [begin, end) of blocks.
void linear_packed(const Linear& l, int64_t begin, int64_t end) {
  const int64_t blocks = (l.out + 15) / 16, last = 2 * end < blocks ? 2 * end : blocks;
  const int64_t together = l.rows > kFewProductRows ? kTileBlocks : 1;
  const int64_t fitting = kPanelNumbers / (16 * l.in + 1) / 2 * 2, panel = fitting < 2 ? 2 : fitting;
  for (int64_t left = 2 * begin; left < last; left += panel) {
    const int64_t right = left + panel < last ? left + panel : last;
    for (int64_t row = 0; row < l.rows; row += kTileRows) {
      for (int64_t block = left; block < right; block += together) {
        if (together == 1 || block + 1 == right)
          packed_rows<1, kTileRows>(l, row, block);
        else
          packed_rows<kTileBlocks, kTileRows>(l, row, block);
      }
    }
  }
}
