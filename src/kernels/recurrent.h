// Arguments of the recurrent mixers' operations (entries of Ops). Each advances one token; the
// state is f32 and belongs to the sequence.
#pragma once

#include <cstdint>

namespace millrace::kernels {

// dt = clip(softplus(x + bias), least, most); decay = exp(-exp(rate) * dt), or exp(rate * dt) when
// the file keeps the rate itself and not its logarithm.
struct DecayArgs {
  const float* x = nullptr;     // [n]
  const float* bias = nullptr;  // [n]
  const float* rate = nullptr;  // [n]
  bool logarithm = true;
  float least = 0.0f, most = __builtin_inff();
  uint32_t n = 0;
  float* dt = nullptr;     // [n]
  float* decay = nullptr;  // [n]
};

// Depthwise convolution over the last `kernel` positions, oldest first; shifts x into the tail.
// out may be x.
struct ConvArgs {
  float* tail = nullptr;          // [kernel - 1, stride] inputs before this one, oldest first
  const float* weight = nullptr;  // [kernel, stride]
  const float* bias = nullptr;    // [n] or null
  const float* x = nullptr;       // [n]
  uint32_t kernel = 0, stride = 0, n = 0;
  bool silu = false;  // applied to the sum
  float* out = nullptr;
};

// S *= decay; u = (v - S k) beta; S += u k; out = S q. One head.
struct DeltaArgs {
  float* state = nullptr;  // [key_dim, value_dim]
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  float decay = 1.0f, beta = 1.0f;
  uint32_t key_dim = 0, value_dim = 0;
  float* out = nullptr;  // [value_dim]
};

// S = decay S + dt x b; out = S c + skip x. One head.
struct SsmArgs {
  float* state = nullptr;                  // [state_dim, head_dim]
  const float* x = nullptr;                // [head_dim]
  const float *b = nullptr, *c = nullptr;  // [state_dim]
  float decay = 1.0f, dt = 1.0f, skip = 0.0f;
  uint32_t head_dim = 0, state_dim = 0;
  float* out = nullptr;  // [head_dim]
};

}  // namespace millrace::kernels
