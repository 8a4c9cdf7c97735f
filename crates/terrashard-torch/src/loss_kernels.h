// The source of the kernels of `loss.cc`, after `compiled_types.h`: losses of maps by classes of pixels, for one FACTOR of enlargement;
// THREADS in a block, a power of two.
//
// A block of FACTOR x FACTOR pixels has KINDS x KINDS different values: its first row, its last row and those between, and the same of
// columns. A thread takes a block. Sums are in 64 bits, in an order that does not depend on timing.

#pragma once

namespace terrashard {

constexpr const char* kLossKernels = R"kernels(
typedef unsigned char u8;
constexpr int KINDS = FACTOR < 3 ? FACTOR : 3;

__device__ __forceinline__ constexpr int kind_of(int pixel) {
  return pixel == 0 ? 0 : pixel < FACTOR - 1 ? 1 : KINDS - 1;
}

// Adds up a number of each thread; the result is that of the first.
__device__ __forceinline__ double over_block(double x) {
  __shared__ double parts[THREADS];
  __syncthreads();
  parts[threadIdx.x] = x;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  return parts[0];
}

// What two numbers of a loss say, with the logit's sigmoid and logarithm and those of its opposite.
struct Logit {
  float x, p, q, log_p, log_q;
  __device__ __forceinline__ explicit Logit(float x) : x(x) {
    const float e = expf(-fabsf(x)), l = log1pf(e), small = e / (1.0f + e), large = 1.0f / (1.0f + e);
    p = x < 0 ? small : large;
    q = x < 0 ? large : small;
    log_p = (x < 0 ? x : 0.0f) - l;
    log_q = (x < 0 ? 0.0f : -x) - l;
  }
};

// LOSS 0 focal: alpha, gamma; 1 binary cross-entropy: softening; 2 sums of Dice; 3 the gradient of Dice: by the probability of a
// negative and of a positive pixel. Of `positive` and `negative` pixels with the same logit.
__device__ __forceinline__ void loss_of(const Logit& z, float positive, float negative, float a, float b, float (&sums)[2],
                                        float& slope) {
#if LOSS == 0
  const float up = (b == 2.0f ? z.q * z.q : powf(z.q, b)) * positive * a;
  const float down = (b == 2.0f ? z.p * z.p : powf(z.p, b)) * negative * (1.0f - a);
  sums[0] -= up * z.log_p + down * z.log_q;
  slope = (b * z.p * z.log_p - z.q) * up + (z.p - b * z.q * z.log_q) * down;
#elif LOSS == 1
  const float valid = positive + negative, target = positive * (1.0f - a) + negative * a;
  sums[0] += z.x * (valid - target) - z.log_p * valid;
  slope = z.p * valid - target;
#elif LOSS == 2
  sums[0] += z.p * positive;
  sums[1] += z.p * (positive + negative);
#else
  slope = z.p * z.q * (positive * b + negative * a);
#endif
}

#ifdef LOSS
// map: [n, KINDS KINDS, h, w], labels: [n, FACTOR h, FACTOR w], 255 ignored. slope: like the map, or null. sums: two for each block.
extern "C" __global__ void __launch_bounds__(THREADS)
mask_loss(const T* map, const u8* labels, T* slope, double* sums, i64 count, i64 h, i64 w, float a, float b) {
  double all[2] = {0, 0};
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < count; i += (i64)gridDim.x * THREADS) {
    const i64 x = i % w, y = i / w % h, n = i / w / h, plane = h * w;
    int positive[KINDS * KINDS], negative[KINDS * KINDS];
#pragma unroll
    for (int k = 0; k < KINDS * KINDS; k++) positive[k] = negative[k] = 0;
    const u8* own = labels + (n * h + y) * FACTOR * w * FACTOR + x * FACTOR;
#pragma unroll
    for (int row = 0; row < FACTOR; row++) {
#pragma unroll
      for (int column = 0; column < FACTOR; column++) {
        const int label = own[row * w * FACTOR + column], k = kind_of(row) * KINDS + kind_of(column);
        positive[k] += label != 0 && label != 255;
        negative[k] += label == 0;
      }
    }
    const i64 place = n * KINDS * KINDS * plane + y * w + x;
    float both[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < KINDS * KINDS; k++) {
      float rise = 0;
      // Where all pixels are ignored the map may hold anything.
      if (positive[k] + negative[k] > 0)
        loss_of(Logit(wide(map[place + k * plane])), (float)positive[k], (float)negative[k], a, b, both, rise);
      if (slope != nullptr) slope[place + k * plane] = narrow(rise);
    }
    all[0] += both[0];
    all[1] += both[1];
  }
  for (int i = 0; i < 2; i++) {
    const double sum = over_block(all[i]);
    if (threadIdx.x == 0) sums[2 * blockIdx.x + i] = sum;
  }
}
#else
// NUMBERS 0: floats, NaN where there is none; 1: digital numbers.
#if NUMBERS
typedef u16 Stored;
// Rounded twice, as on the host: left to itself the compiler makes one operation of product and difference.
__device__ __forceinline__ float meant(u16 x, float offset, float scale, u32 missing) {
  return x == missing ? __uint_as_float(0x7fc00000u) : __fmul_rn(__fadd_rn((float)x, offset), scale);
}
#else
typedef float Stored;
__device__ __forceinline__ float meant(float x, float, float, u32) { return x; }
#endif

// map: [planes, KINDS KINDS, h, w], target: [planes, FACTOR h, FACTOR w].
extern "C" __global__ void __launch_bounds__(THREADS)
l1_loss(const T* map, const Stored* target, T* slope, double* sums, i64 count, i64 h, i64 w, float offset, float scale, u32 missing) {
  double all = 0;
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < count; i += (i64)gridDim.x * THREADS) {
    const i64 x = i % w, y = i / w % h, n = i / w / h, plane = h * w;
    const i64 place = n * KINDS * KINDS * plane + y * w + x;
    float values[KINDS * KINDS], rises[KINDS * KINDS], sum = 0;
#pragma unroll
    for (int k = 0; k < KINDS * KINDS; k++) {
      values[k] = wide(map[place + k * plane]);
      rises[k] = 0;
    }
    const Stored* own = target + (n * h + y) * FACTOR * w * FACTOR + x * FACTOR;
#pragma unroll
    for (int row = 0; row < FACTOR; row++) {
#pragma unroll
      for (int column = 0; column < FACTOR; column++) {
        const float wanted = meant(own[row * w * FACTOR + column], offset, scale, missing);
        const int k = kind_of(row) * KINDS + kind_of(column);
        const float difference = values[k] - wanted;
        if (wanted != wanted) continue;
        sum += fabsf(difference);
        rises[k] += difference > 0 ? 1.0f : difference < 0 ? -1.0f : 0.0f;
      }
    }
    if (slope != nullptr) {
#pragma unroll
      for (int k = 0; k < KINDS * KINDS; k++) slope[place + k * plane] = narrow(rises[k]);
    }
    all += sum;
  }
  const double sum = over_block(all);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
#endif
)kernels";

}  // namespace terrashard
