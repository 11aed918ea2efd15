// A linear map of a few rows: the weights are read once, at the speed of the memory, each against all rows.

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
      __builtin_prefetch(weight + (Columns + c) * l.in + i);  // the next columns', which are the next to be read
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
      l.y[(row + r) * l.out + column + c] = whole;
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
