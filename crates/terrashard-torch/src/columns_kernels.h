// The source of the kernels of `columns.cc`, after `compiled_types.h`. A thread takes WIDTH neighbouring pixels of a row.

#pragma once

namespace terrashard {

constexpr const char* kColumnsKernels = R"kernels(
// Pixels x - 1 to x + WIDTH of a row that begins at `row`; nought beyond its ends.
__device__ __forceinline__ void read(T (&to)[WIDTH + 2], const T* row, i64 vector, i64 vectors) {
  Vector middle;
  middle.bits = ((const uint4*)row)[vector];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) to[i + 1] = middle.values[i];
  to[0] = vector > 0 ? row[vector * WIDTH - 1] : (T)0;
  to[WIDTH + 1] = vector + 1 < vectors ? row[(vector + 1) * WIDTH] : (T)0;
}

extern "C" __global__ void columns(const T* x, T* out, i64 count, i64 height, i64 vectors) {
  const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const i64 vector = index % vectors, y = index / vectors % height, plane = index / vectors / height;
  const i64 width = vectors * WIDTH, size = height * width;
#pragma unroll
  for (int dy = 0; dy < 3; dy++) {
    T row[WIDTH + 2];
    const i64 from = y + dy - 1;
    if (from >= 0 && from < height) {
      read(row, x + plane * size + from * width, vector, vectors);
    } else {
#pragma unroll
      for (int i = 0; i < WIDTH + 2; i++) row[i] = (T)0;
    }
#pragma unroll
    for (int dx = 0; dx < 3; dx++) {
      Vector pixels;
#pragma unroll
      for (int i = 0; i < WIDTH; i++) pixels.values[i] = row[i + dx];
      T* to = out + (plane * 9 + dy * 3 + dx) * size + y * width;
      ((uint4*)to)[vector] = pixels.bits;
    }
  }
}

extern "C" __global__ void columns_backward(const T* columns, T* out, i64 count, i64 height, i64 vectors) {
  const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const i64 vector = index % vectors, y = index / vectors % height, plane = index / vectors / height;
  const i64 width = vectors * WIDTH, size = height * width;
  float sums[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sums[i] = 0;
#pragma unroll
  for (int dy = 0; dy < 3; dy++) {
    // Pixel (y, x) was copied to (y - dy + 1, x - dx + 1) of this tap.
    const i64 from = y - dy + 1;
    if (from < 0 || from >= height) continue;
#pragma unroll
    for (int dx = 0; dx < 3; dx++) {
      T row[WIDTH + 2];
      read(row, columns + (plane * 9 + dy * 3 + dx) * size + from * width, vector, vectors);
#pragma unroll
      for (int i = 0; i < WIDTH; i++) sums[i] += wide(row[i + 2 - dx]);
    }
  }
  Vector pixels;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) pixels.values[i] = narrow(sums[i]);
  ((uint4*)(out + plane * size + y * width))[vector] = pixels.bits;
}
)kernels";

}  // namespace terrashard
