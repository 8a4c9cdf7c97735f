// The source of the kernels of `depthwise.cc`, after `compiled_types.h`: ROWS rows of the map for a thread; THREADS in a block
// of the weights' gradients, of which LANES neighbours take WIDTH channels each. All sums are of 32 bits, in an order that does not depend
// on timing.

#pragma once

namespace terrashard {

constexpr const char* kDepthwiseKernels = R"kernels(
__device__ __forceinline__ Vector at(const T* from) {
  Vector vector;
  vector.bits = *(const uint4*)from;
  return vector;
}

__device__ __forceinline__ void read(float (&to)[WIDTH], const T* from) {
  const Vector vector = at(from);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) to[i] = wide(vector.values[i]);
}

// A thread takes one column of WIDTH channels down ROWS rows, so that each value is read three times, not nine. weight: [D, 9],
// from the last tap to the first where `flipped`. bias and activated may be null.
extern "C" __global__ void __launch_bounds__(128)
depthwise(const T* x, const T* weight, const T* bias, T* y, T* activated, i64 count, i64 height, i64 width, i64 vectors,
          int flipped) {
  const i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const i64 channels = vectors * WIDTH, offset = index % vectors * WIDTH, column = index / vectors % width;
  const i64 strips = (height + ROWS - 1) / ROWS, strip = index / vectors / width;
  const i64 first = strip % strips * ROWS, end = first + ROWS < height ? first + ROWS : height;
  const i64 map = strip / strips * height;
  float w[9][WIDTH], b[WIDTH];
  {
    // The taps of a channel lie side by side, and so do those of its neighbours.
    Vector taps[9];
#pragma unroll
    for (int v = 0; v < 9; v++) taps[v] = at(weight + offset * 9 + v * WIDTH);
#pragma unroll
    for (int k = 0; k < 9; k++) {
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        const int tap = i * 9 + k, opposite = i * 9 + 8 - k;
        w[k][i] = wide(flipped ? taps[opposite / WIDTH].values[opposite % WIDTH] : taps[tap / WIDTH].values[tap % WIDTH]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < WIDTH; i++) b[i] = 0;
  if (bias != nullptr) read(b, bias + offset);
  // Sums of the rows above, at and below the one that is read.
  float above[WIDTH], here[WIDTH], below[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) above[i] = here[i] = below[i] = b[i];
  for (i64 row = first - 1; row <= end; row++) {
    if (row >= 0 && row < height) {
#pragma unroll
      for (int dx = 0; dx < 3; dx++) {
        const i64 from = column + dx - 1;
        if (from < 0 || from >= width) continue;
        float v[WIDTH];
        read(v, x + ((map + row) * width + from) * channels + offset);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
          below[i] += v[i] * w[dx][i];
          here[i] += v[i] * w[3 + dx][i];
          above[i] += v[i] * w[6 + dx][i];
        }
      }
    }
    if (row > first) {
      const i64 to = ((map + row - 1) * width + column) * channels + offset;
      Vector out;
#pragma unroll
      for (int i = 0; i < WIDTH; i++) out.values[i] = narrow(above[i]);
      *(uint4*)(y + to) = out.bits;
      if (activated != nullptr) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
          // Of the rounded value, as backward makes it again.
          const float value = wide(out.values[i]);
          out.values[i] = narrow(value * 0.5f * (1.0f + erff(value * 0.70710678118654752f)));
        }
        *(uint4*)(activated + to) = out.bits;
      }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      above[i] = here[i];
      here[i] = below[i];
      below[i] = b[i];
    }
  }
}

// sums: for each part of the rows the gradients of the nine taps and of the bias, [parts, 10, D]. A thread walks along rows
// with nine values of x around each of the gradient.
extern "C" __global__ void __launch_bounds__(THREADS)
depthwise_weight(const T* gradient, const T* x, float* sums, i64 rows, i64 height, i64 width, i64 vectors, i64 groups) {
  constexpr int SUBS = THREADS / LANES;
  const i64 part = blockIdx.x / groups, parts = gridDim.x / groups, group = blockIdx.x % groups;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const i64 channels = vectors * WIDTH, offset = (group * LANES + lane) * WIDTH;
  float taps[10][WIDTH];
#pragma unroll
  for (int k = 0; k < 10; k++) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) taps[k][i] = 0;
  }
  Vector nought;
  nought.bits = make_uint4(0, 0, 0, 0);
  for (i64 row = part * SUBS + sub; row < rows; row += parts * SUBS) {
    const i64 y = row % height;
    const T* g = gradient + row * width * channels + offset;
    const T* in = x + row * width * channels + offset;
    const bool is_there[3] = {y > 0, true, y + 1 < height};
    Vector window[3][3];
#pragma unroll
    for (int dy = 0; dy < 3; dy++) {
      window[dy][1] = nought;
      window[dy][2] = is_there[dy] ? at(in + (dy - 1) * width * channels) : nought;
    }
    for (i64 column = 0; column < width; column++) {
#pragma unroll
      for (int dy = 0; dy < 3; dy++) {
        window[dy][0] = window[dy][1];
        window[dy][1] = window[dy][2];
        const bool more = is_there[dy] && column + 1 < width;
        window[dy][2] = more ? at(in + ((dy - 1) * width + column + 1) * channels) : nought;
      }
      const Vector own = at(g + column * channels);
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        const float value = wide(own.values[i]);
        taps[9][i] += value;
#pragma unroll
        for (int k = 0; k < 9; k++) taps[k][i] += value * wide(window[k / 3][k % 3].values[i]);
      }
    }
  }
  __shared__ float all[10][LANES * WIDTH];
  for (int i = threadIdx.x; i < 10 * LANES * WIDTH; i += THREADS) (&all[0][0])[i] = 0;
  for (int turn = 0; turn < SUBS; turn++) {
    __syncthreads();
    if (sub != turn) continue;
#pragma unroll
    for (int k = 0; k < 10; k++) {
#pragma unroll
      for (int i = 0; i < WIDTH; i++) all[k][lane * WIDTH + i] += taps[k][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 10 * LANES * WIDTH; i += THREADS) {
    const int k = i / (LANES * WIDTH), channel = i % (LANES * WIDTH);
    sums[(part * 10 + k) * channels + group * LANES * WIDTH + channel] = all[k][channel];
  }
}

// Adds the sums of all parts: 32 sums for each block of 8 x 32 threads. gw: [D, 9].
extern "C" __global__ void __launch_bounds__(256)
depthwise_finish(const float* sums, T* gw, T* gb, i64 parts, i64 channels) {
  const i64 index = (i64)blockIdx.x * 32 + threadIdx.x % 32;
  const int lane = threadIdx.x / 32;
  float sum = 0;
  if (index < 10 * channels) {
    for (i64 part = lane; part < parts; part += 8) sum += sums[part * 10 * channels + index];
  }
  __shared__ float lanes[8][32];
  lanes[lane][threadIdx.x % 32] = sum;
  __syncthreads();
  if (lane != 0 || index >= 10 * channels) return;
  sum = 0;
  for (int i = 0; i < 8; i++) sum += lanes[i][threadIdx.x];
  const i64 tap = index / channels, channel = index % channels;
  if (tap < 9) {
    gw[channel * 9 + tap] = narrow(sum);
  } else {
    gb[channel] = narrow(sum);
  }
}
)kernels";

}  // namespace terrashard
