// What a decoder's block does between its matrix products: gate, ReLU, residual sum and layer norm, of a few rows.

// Rows (a, b) of 2C numbers give a * sigmoid(b).
void gate_rows(const float* x, int64_t rows, int64_t C, float* __restrict__ y) {
  for (int64_t n = 0; n < rows; ++n, x += 2 * C, y += C) {
    for (int64_t c = 0; c < C; ++c) {
      const float b = x[C + c];
      const float small = exponential(b < 0 ? b : -b);
      y[c] = x[c] * ((b < 0 ? small : 1.0f) / (1.0f + small));
    }
  }
}

void relu(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = x[i] < 0 ? 0.0f : x[i];  // NaN stays
}

void add_rows(const float* x, int64_t count, float* __restrict__ sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

// y = (x - mean) / sqrt(variance + eps) * scale + shift, row by row; y may be x.
void normalize_rows(const LayerNorm& norm, const float* x, int64_t rows, int64_t C, float* y) {
  for (int64_t n = 0; n < rows; ++n, x += C, y += C) {
    const float mean = total(x, C) / C;
    for (int64_t c = 0; c < C; ++c) y[c] = x[c] - mean;
    const float scale = 1 / std::sqrt(dot(static_cast<const float*>(y), static_cast<const float*>(y), C) / C + norm.eps);
    for (int64_t c = 0; c < C; ++c) y[c] = y[c] * scale * norm.scale[c] + norm.shift[c];
  }
}
