// The source of the kernels of `resize.cc`, after `compiled_types.h`. Maps lie in memory as [n, h, w, c]; a thread takes WIDTH
// neighbouring channels of a pixel, `vectors` of which make a pixel.

#pragma once

namespace terrashard {

constexpr const char* kResizeKernels = R"kernels(
// Where a pixel of the large map comes from along one direction: `first` and the one after it, which has the weight `second`.
struct Place {
  i64 first, next;
  float second;
};

__device__ __forceinline__ Place place(i64 pixel, i64 small, float scale) {
  float at = scale * (pixel + 0.5f) - 0.5f;
  if (at < 0) at = 0;
  Place it;
  it.first = (i64)at;
  if (it.first > small - 1) it.first = small - 1;
  it.next = it.first + (it.first < small - 1 ? 1 : 0);
  it.second = at - it.first;
  return it;
}

// The weight with which a pixel of the large map comes from `pixel` of the small one.
__device__ __forceinline__ float weight(i64 large, i64 pixel, i64 small, float scale) {
  const Place it = place(large, small, scale);
  return (it.first == pixel ? 1 - it.second : 0) + (it.next == pixel ? it.second : 0);
}

__device__ __forceinline__ void add(float (&sums)[WIDTH], const T* map, i64 vector, float weight) {
  Vector values;
  values.bits = ((const uint4*)map)[vector];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sums[i] += weight * wide(values.values[i]);
}

__device__ __forceinline__ void write(T* map, i64 vector, const float (&sums)[WIDTH]) {
  Vector values;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) values.values[i] = narrow(sums[i]);
  ((uint4*)map)[vector] = values.bits;
}

extern "C" __global__ void resize(const T* small, T* large, i64 count, i64 vectors, i64 h, i64 w, i64 height, i64 width,
                                  float scale_y, float scale_x) {
  const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const i64 c = index % vectors, x = index / vectors % width, y = index / vectors / width % height;
  const i64 n = index / vectors / width / height;
  const Place py = place(y, h, scale_y), px = place(x, w, scale_x);
  float sums[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sums[i] = 0;
  const i64 first = (n * h + py.first) * w, next = (n * h + py.next) * w;
  add(sums, small, (first + px.first) * vectors + c, (1 - py.second) * (1 - px.second));
  add(sums, small, (first + px.next) * vectors + c, (1 - py.second) * px.second);
  add(sums, small, (next + px.first) * vectors + c, py.second * (1 - px.second));
  add(sums, small, (next + px.next) * vectors + c, py.second * px.second);
  write(large, index, sums);
}

// Pixels of the large map that may come from `pixel`.
__device__ __forceinline__ void range(i64 pixel, i64 large, float scale, i64& begin, i64& end) {
  begin = (i64)floorf((pixel - 0.5f) / scale - 0.5f) - 1;
  end = (i64)ceilf((pixel + 1.5f) / scale - 0.5f) + 2;
  if (begin < 0) begin = 0;
  if (end > large) end = large;
}

extern "C" __global__ void resize_backward(const T* large, T* small, i64 count, i64 vectors, i64 h, i64 w, i64 height, i64 width,
                                           float scale_y, float scale_x) {
  const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const i64 c = index % vectors, x = index / vectors % w, y = index / vectors / w % h, n = index / vectors / w / h;
  i64 first_y, end_y, first_x, end_x;
  range(y, height, scale_y, first_y, end_y);
  range(x, width, scale_x, first_x, end_x);
  float sums[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sums[i] = 0;
  for (i64 row = first_y; row < end_y; row++) {
    const float wy = weight(row, y, h, scale_y);
    if (wy == 0) continue;
    for (i64 column = first_x; column < end_x; column++) {
      const float wx = weight(column, x, w, scale_x);
      if (wx != 0) add(sums, large, ((n * height + row) * width + column) * vectors + c, wy * wx);
    }
  }
  write(small, index, sums);
}
)kernels";

}  // namespace terrashard
