// The source of the kernel of `sums.cc`, after `compiled_types.h`: THREADS in a block, of which LANES neighbours take WIDTH columns each.
// Sums are of 32 bits, in an order that does not depend on timing.

#pragma once

namespace terrashard {

constexpr const char* kSumsKernels = R"kernels(
constexpr int SUBS = THREADS / LANES, COLUMNS = LANES * WIDTH;

// Blocks: for each part of the rows one for each group of COLUMNS. sums: [parts, columns], null where there is one part. done: a
// number for each group, nought before and after: the block that is done last adds up the sums of all.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_of_rows(const T* x, T* out, float* sums, u32* done, i64 rows, i64 columns) {
  const u32 groups = columns / COLUMNS, group = blockIdx.x % groups, part = blockIdx.x / groups, parts = gridDim.x / groups;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  float own[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) own[i] = 0;
  const T* from = x + group * COLUMNS + lane * WIDTH;
#pragma unroll 4
  for (i64 row = (i64)part * SUBS + sub; row < rows; row += (i64)parts * SUBS) {
    Vector vector;
    vector.bits = *(const uint4*)(from + row * columns);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) own[i] += wide(vector.values[i]);
  }
  __shared__ float all[SUBS][COLUMNS];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) all[sub][lane * WIDTH + i] = own[i];
  for (int half = SUBS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (sub >= half) continue;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) all[sub][lane * WIDTH + i] += all[sub + half][lane * WIDTH + i];
  }
  __syncthreads();
  if (parts == 1) {
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) out[group * COLUMNS + i] = narrow(all[0][i]);
    return;
  }
  for (int i = threadIdx.x; i < COLUMNS; i += THREADS) sums[part * columns + group * COLUMNS + i] = all[0][i];
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(done + group, 1u) == parts - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  constexpr int WALKERS = THREADS / COLUMNS > 0 ? THREADS / COLUMNS : 1;
  const int walker = threadIdx.x / COLUMNS;
  for (int column = threadIdx.x % COLUMNS; column < COLUMNS && walker < WALKERS; column += THREADS) {
    float sum = 0;
    for (u32 p = walker; p < parts; p += WALKERS) sum += ((volatile const float*)sums)[p * columns + group * COLUMNS + column];
    all[walker][column] = sum;
  }
  __syncthreads();
  for (int column = threadIdx.x; column < COLUMNS; column += THREADS) {
    float sum = 0;
    for (int w = 0; w < WALKERS; w++) sum += all[w][column];
    out[group * COLUMNS + column] = narrow(sum);
  }
  if (threadIdx.x == 0) done[group] = 0;
}
)kernels";

}  // namespace terrashard
