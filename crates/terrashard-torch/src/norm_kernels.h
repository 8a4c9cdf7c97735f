// The source of the kernels of layer normalisation, after `compiled_types.h`, for one type and row length: COLUMNS = ROW_THREADS * VECTORS * (16 bytes / size of an element); THREADS in a block.
//
// ROW_THREADS neighbouring threads, a power of two within a warp, take a row. Vector `v` of thread `t` begins at element
// (v * ROW_THREADS + t) * WIDTH. All sums are of 32 bits, in an order that does not depend on timing.

#pragma once

namespace terrashard {

constexpr const char* kNormKernels = R"kernels(
constexpr int ELEMENTS = VECTORS * WIDTH;
constexpr int ROWS = THREADS / ROW_THREADS;

__device__ __forceinline__ void load(float (&to)[ELEMENTS], const T* from, int thread) {
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    Vector vector;
    vector.bits = ((const uint4*)from)[v * ROW_THREADS + thread];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) to[v * WIDTH + i] = wide(vector.values[i]);
  }
}

__device__ __forceinline__ void store(T* to, const float (&from)[ELEMENTS], int thread) {
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    Vector vector;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) vector.values[i] = narrow(from[v * WIDTH + i]);
    ((uint4*)to)[v * ROW_THREADS + thread] = vector.bits;
  }
}

// The threads of one row, of which others of the warp may have no row left.
__device__ __forceinline__ u32 row_mask() {
  const u32 first = (threadIdx.x & 31u) / ROW_THREADS * ROW_THREADS;
  return (ROW_THREADS == 32 ? 0xffffffffu : ((1u << (ROW_THREADS & 31)) - 1u)) << first;
}

__device__ __forceinline__ float over_row(float x, u32 mask) {
#pragma unroll
  for (int offset = ROW_THREADS / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(mask, x, offset, ROW_THREADS);
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
norm_forward(const T* x, const T* weight, const T* bias, T* y, float* means, float* inverses, i64 rows, float epsilon) {
  const int thread = threadIdx.x % ROW_THREADS;
  const u32 mask = row_mask();
  float w[ELEMENTS], b[ELEMENTS];
  load(w, weight, thread);
  load(b, bias, thread);
  for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / ROW_THREADS; row < rows; row += (i64)gridDim.x * ROWS) {
    float values[ELEMENTS];
    load(values, x + row * COLUMNS, thread);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) sum += values[i];
    const float mean = over_row(sum, mask) / COLUMNS;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
      values[i] -= mean;
      squares += values[i] * values[i];
    }
    const float inverse = rsqrtf(over_row(squares, mask) / COLUMNS + epsilon);
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) values[i] = values[i] * inverse * w[i] + b[i];
    store(y + row * COLUMNS, values, thread);
    if (thread == 0) {
      means[row] = mean;
      inverses[row] = inverse;
    }
  }
}

// sums: for each block the gradients of weight and bias over its rows, [blocks, 2, COLUMNS]. beside, gx, sums may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_backward(const T* gradient, const T* x, const T* weight, const float* means, const float* inverses, const T* beside, T* gx,
              float* sums, i64 rows) {
  const int thread = threadIdx.x % ROW_THREADS, group = threadIdx.x / ROW_THREADS;
  const u32 mask = row_mask();
  float gw[ELEMENTS], gb[ELEMENTS];
#pragma unroll
  for (int i = 0; i < ELEMENTS; i++) gw[i] = gb[i] = 0;
  for (i64 row = (i64)blockIdx.x * ROWS + group; row < rows; row += (i64)gridDim.x * ROWS) {
    float g[ELEMENTS], normal[ELEMENTS];
    load(g, gradient + row * COLUMNS, thread);
    load(normal, x + row * COLUMNS, thread);
    const float mean = means[row], inverse = inverses[row];
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
      normal[i] = (normal[i] - mean) * inverse;
      gw[i] += g[i] * normal[i];
      gb[i] += g[i];
    }
    if (gx == nullptr) continue;
    {
      float w[ELEMENTS];
      load(w, weight, thread);
#pragma unroll
      for (int i = 0; i < ELEMENTS; i++) g[i] *= w[i];
    }
    float first = 0, second = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
      first += g[i];
      second += g[i] * normal[i];
    }
    first = over_row(first, mask) / COLUMNS;
    second = over_row(second, mask) / COLUMNS;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) g[i] = (g[i] - first - normal[i] * second) * inverse;
    if (beside != nullptr) {
      float more[ELEMENTS];
      load(more, beside + row * COLUMNS, thread);
#pragma unroll
      for (int i = 0; i < ELEMENTS; i++) g[i] += more[i];
    }
    store(gx + row * COLUMNS, g, thread);
  }
  if (sums == nullptr) return;
  __shared__ float both[2][COLUMNS];
  for (int i = threadIdx.x; i < 2 * COLUMNS; i += THREADS) (&both[0][0])[i] = 0;
  for (int turn = 0; turn < ROWS; turn++) {
    __syncthreads();
    if (group != turn) continue;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        const int column = (v * ROW_THREADS + thread) * WIDTH + i;
        both[0][column] += gw[v * WIDTH + i];
        both[1][column] += gb[v * WIDTH + i];
      }
    }
  }
  __syncthreads();
  float* own = sums + (i64)blockIdx.x * 2 * COLUMNS;
  for (int i = threadIdx.x; i < 2 * COLUMNS; i += THREADS) own[i] = (&both[0][0])[i];
}

// Adds the sums of all blocks: 32 columns for each block of 8 x 32 threads.
extern "C" __global__ void __launch_bounds__(256) norm_finish(const float* sums, T* gw, T* gb, i64 blocks) {
  const int column = blockIdx.x * 32 + threadIdx.x % 32, lane = threadIdx.x / 32;
  float sum = 0;
  if (column < 2 * COLUMNS) {
    for (i64 block = lane; block < blocks; block += 8) sum += sums[block * 2 * COLUMNS + column];
  }
  __shared__ float parts[8][32];
  parts[lane][threadIdx.x % 32] = sum;
  __syncthreads();
  if (lane != 0 || column >= 2 * COLUMNS) return;
  sum = 0;
  for (int i = 0; i < 8; i++) sum += parts[i][threadIdx.x];
  if (column < COLUMNS) {
    if (gw != nullptr) gw[column] = narrow(sum);
  } else if (gb != nullptr) {
    gb[column - COLUMNS] = narrow(sum);
  }
}
)kernels";

}  // namespace terrashard
