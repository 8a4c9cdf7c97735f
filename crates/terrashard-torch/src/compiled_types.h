// The beginning of every program that is compiled where it runs: TYPE 0, 1, 2 is f32, bf16, f16. No header of CUDA is needed.

#pragma once

namespace terrashard {

constexpr const char* kTypes = R"kernels(
typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

#if TYPE == 0
typedef float T;
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float narrow(float x) { return x; }
#elif TYPE == 1
typedef u16 T;
__device__ __forceinline__ float wide(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 narrow(float x) {
  u32 bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#else
typedef u16 T;
__device__ __forceinline__ float wide(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ u16 narrow(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif

// 16 bytes, which a thread reads or writes at once.
constexpr int WIDTH = 16 / sizeof(T);
union Vector {
  uint4 bits;
  T values[WIDTH];
};
)kernels";

}  // namespace terrashard
